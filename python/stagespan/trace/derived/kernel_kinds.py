"""Recognises the kind of work of a kernel or an operator by its name.

Knows the names of CUDA, ROCm, XPU and Ascend libraries, of Inductor on device and host, and of
aten.
"""

from __future__ import annotations

import re
from functools import lru_cache

from stagespan.device.table import COLLECTIVES

MATMUL, ATTENTION, CONVOLUTION, NORM = "matmul", "attention", "convolution", "norm"
ELEMENTWISE, REDUCTION, COPY = "elementwise", "reduction", "copy"
COMMUNICATION, TRITON, INDUCTOR_CPP = "communication", "triton", "inductor_cpp"
EMBEDDING, OPTIMIZER, MOE = "embedding", "optimizer", "moe"
INDEXING, RECURRENT, VIEW = "indexing", "recurrent", "view"
OTHER = "other"
KINDS: dict[str, str] = {
    MATMUL: "matrix products",
    ATTENTION: "attention",
    CONVOLUTION: "convolutions",
    NORM: "normalisation",
    ELEMENTWISE: "elementwise",
    REDUCTION: "reductions, softmax, pooling, sorting",
    COPY: "copies, fills, changes of layout",
    COMMUNICATION: "communication",
    TRITON: "Triton",
    INDUCTOR_CPP: "C++ of torch.compile",
    EMBEDDING: "embedding tables",
    INDEXING: "gather, scatter, index",
    OPTIMIZER: "optimizer",
    MOE: "mixture of experts",
    RECURRENT: "recurrent layers",
    VIEW: "views, empty tensors",
    OTHER: "other",
}
"""Every kind with its name on pages."""

INDUCTOR_TRITON = re.compile(r"^triton_(?P<kind>[a-z]+)_fused_|^triton__\d|^triton_(?:tem|mm|bmm)_")
"""Inductor's Triton kernels: pointwise, reduction, ...; without a kind before torch 2.1."""
LAYOUT = re.compile(
    r"nchwtonhwc|nhwctonchw|nchw2nhwc|nhwc2nchw|batched_transpose_\d|transdata", re.IGNORECASE
)
"""Kernels that only change the memory layout of a tensor for the previous or next kernel."""

COLLECTIVE = rf"(?:{COLLECTIVES}|gloo|xccl|mpi|ucc|c10d)\w*:"
"""The beginning of the names of torch's annotations and operators for collectives."""

VIEWS = re.compile(
    r"^aten::(?:view|view_as|t|transpose|permute|expand|expand_as|unsqueeze|squeeze|reshape|slice"
    r"|select|as_strided|detach|detach_|alias|unbind|split|split_with_sizes|chunk|narrow|unfold"
    r"|flatten|unflatten|movedim|swapaxes|lift_fresh|empty|empty_like|empty_strided|_unsafe_view"
    r"|_reshape_alias)$"
)
"""Operators that compute nothing: they make another view of a tensor, or an empty one. Some copy
the tensor if they must, with another operator inside."""

# The first match decides. Names are compared in lower case.
_RULES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        (
            COMMUNICATION,
            (
                rf"^{COLLECTIVE}|{COLLECTIVES}|hcom_|oneccl|mscclpp|nvshmem"
                r"|cross_device_reduce|(?:one|two|multi)_?shot_all_?reduce|multimem_|all_?reduce_fusion"
                r"|^record_param_comms|quickreduce|deep_ep::(?!layout::)|(?<![a-z])k?userbuffers_"
                r"|(?<![a-z_])ep::int(?:er|ra)node"
                r"|(?<![a-z])mscclkernel|(?<![a-z])ep(?:dispatch|combine)"
                r"|rocshmem|(?<![a-z])[mx]ccl"
                # Kernels of other libraries, unless they also multiply, or copy for a collective.
                r"|^(?!<|##|.*(?:gemm|matmul|_mm|copy|\.py\())(?=.*(?:kernel|[<(]))"
                r".*(?:all_?reduce|all_?gather|reduce_?scatter|all_?(?:to|2)_?all)"
            ),
        ),
        (TRITON, r"^triton_"),
        (INDUCTOR_CPP, r"cpp_fused_|^## call compiledfxgraph"),
        (MOE, r"(?<![a-z])moe|moe(?![a-z])|expert|routing|_matmul_ogs|topk_?gating|grouped_topk"),
        (EMBEDDING, r"(?<!rotary)(?<!rotary_)(?<!rope_)embedding(?!_rotary)|(?:^|_)tbe_"),
        (
            OPTIMIZER,
            (
                r"adam|(?<![a-z])sgd|fusedsgd|adagrad|rmsprop|adadelta|(?<![a-z])lamb(?!da)|fusedlamb"
                r"|adafactor|(?<![a-z])muon(?![a-z])|^optimizer\."
            ),
        ),
        (
            COPY,
            (
                r"^memcpy|^memset|_memset$|memmove|^fillbuffer|direct_copy_kernel|catarray"
                r"|reshape_and_cache|fillfunctor"
                rf"|{LAYOUT.pattern}"
            ),
        ),
        (
            ATTENTION,
            (
                r"flash_?(?:fwd|bwd|attn|attention|decod|mla)|fmha|attn_?(?:fwd|bwd)|attention|mha_"
                r"|sage_?(?:attn|fwd|bwd)|(?:^|_)sage_|qk_int8_sv|_sdpa|sdpa_|attn_(?:kernel|states)"
                r"|fwd_(?:grouped_)?kernel_stage\d|(?:flash|sparse|window|local)_?attn"
                r"|scaled_dot_product|paged_?attn|batch(?:prefill|decode)with|flashinfer.*(?:prefill|decode)"
                r"|_mla_|promptflash|incre(?:flash)"
            ),
        ),
        (
            NORM,
            (
                r"(?:layer|batch|group|instance|rms)_?norm|layernorm|cudnn::bn_|\bbn_(?:fw|bw)"
                r"|rowwisemoments|gammabeta|normfwd|norm_?quant|bnupdate|bntraining"
                r"|weight_norm|l2normalize"
            ),
        ),
        (
            RECURRENT,
            (
                r"(?:mkldnn|cudnn|miopen)_rnn|::(?:lstm|gru|rnn_(?:tanh|relu))$|rnncell|rnn_?cell"
                r"|(?:^|[^a-z])(?:lstm|gru|rnn)_?(?:elementwise|pointwise|cell)|persist_?rnn"
                r"|cudnn::rnn|rnn_blockpersist|_thnn_fused_(?:lstm|gru)"
                r"|quantized::(?:linear_)?(?:lstm|gru)|dynamic_?rnn"
            ),
        ),
        (
            CONVOLUTION,
            (
                r"conv(?!ert)|fprop|(?<!\d)dgrad|wgrad|winograd|im2col|col2im|im2d2col|scudnn|hcudnn|miopen"
                r"|igemm_(?:fwd|bwd|wrw)|^cask_cudnn|cudnn::cnn|cudnn_(?:infer|train|ampere|volta)|depthwise"
                r"|fft2d_(?:r2c|c2r)"
            ),
        ),
        (
            MATMUL,
            (
                r"(?<!fb)gemm|gemv|matmul|nvjet|^cijk_|_xmma|splitk|cublas|rocblas|hipblas|^dot_kernel|tensile"
                r"|marlin|machete|(?:^|::|_)(?:add|badd)?b?mm(?:_|$)"
                r"|::(?:(?:mkldnn_|_)?linear(?!_gru|_lstm|algebra)\w*|einsum|addmv|mv|dot|vdot)_?$"
                r"|^bmm_|^ger_|_scaled_mm|grouped_mm"
            ),
        ),
        (
            COPY,
            (
                r"copy|memcpy|memset|transpose|permute(?!d)|::(?:_to_copy|clone|contiguous|to|cat|concat"
                r"|stack|pad|constant_pad_nd|fill_|zero_|repeat|index_copy_|slice_scatter)$"
                r"|tensormove|aicore_cast$|cast\d*$|broadcastto|concatd?\d*$|::(?:zeros|ones|full)(?:_like)?$"
                r"|onnxconcat|stridedslice|_fill\d*$|zeroslike|oneslike|::_foreach_(?:copy|zero)_"
            ),
        ),
        (
            INDEXING,
            (
                r"(?<!all)(?<!all_)gather|(?<!reduce)(?<!reduce_)scatter|index_?(?:select|put|fill|add)"
                r"|index_(?:elementwise_)?kernel|indexfunc|::(?:index|take|take_along_dim)(?:_backward)?$"
            ),
        ),
        (
            REDUCTION,
            (
                r"reduc|softmax|::(?:sum|mean|amax|amin|max|min|prod|var|std|var_mean|argmax|argmin|any|all"
                r"|norm|linalg_vector_norm|nansum|logsumexp|cumsum|cumprod|topk|sort|argsort|unique\w*"
                r"|nll_loss\w*|cross_entropy_loss|_log_softmax\w*|bincount|histc)(?:_backward\w*|_out)?$"
                r"|pool|topk|radix|cub::|rocprim|thrust|scan|sort|argm(?:ax|in)|nllloss|nll_loss|criterion"
                r"|cumsum|welford"
            ),
        ),
        (
            ELEMENTWISE,
            (
                r"elementwise|pointwise|unrolled|vectorized_|multi_tensor_apply|foreach|functor|dropout"
                r"|gelu|silu|relu|swiglu|sigmoid|tanh|activation|act_and_mul|rotary|rope|quant|threshold"
                r"|tensorop|scalepackedtensor|distribution|adam|sgd|bias_?add|epilogue|add_?bias"
                r"|::(?:add|sub|mul|div|neg|exp|log|log1p|sqrt|rsqrt|pow|sin|cos|abs|clamp\w*|where|erf"
                r"|bernoulli|normal|uniform|eq|ne|gt|ge|lt|le|logical_\w+|bitwise_\w+|masked_fill|square"
                r"|reciprocal|addcmul|addcdiv|lerp|floor|ceil|round|sign|maximum|minimum|remainder|rand\w*"
                r"|hardswish|mish|softplus|leaky_relu|glu|isnan|isfinite|rsub|true_divide)_?(?:_backward)?$"
                r"|(?:^|_)(?:add|mul|sub|realdiv|div|exp|sqrt|equal|muls|adds|axpy\w*|relugrad|select\w*|sigmoid"
                r"|less|greater|maximum|minimum|neg|pows?)(?:v2|v3|aicore)?\d*$"
            ),
        ),
    )
)


# The characters of a name that are examined: each takes about a microsecond.
_MOST_LETTERS = 1024
# For these, the template's arguments are more informative than the function's name.
_OF_WHOLE = 7


@lru_cache(maxsize=16_384)
def kind_of(name: str) -> str:
    """Return the kind of a kernel or operator, one of KINDS.

    The function's own name decides. Its template arguments decide only if the name is not known,
    because those of a copy may contain the word norm, for example. Only the first 1,024 characters
    count.
    """
    lowered = name[:_MOST_LETTERS].lower().removeprefix("void ")
    whole = lowered
    if whole.startswith("autograd::engine::evaluate_function: "):
        return OTHER
    if VIEWS.search(whole):
        return VIEW
    head = lowered.partition("<")[0]
    for kind, rule in _RULES[:_OF_WHOLE]:
        if rule.search(whole):
            return kind
    for text in (head, whole):
        for kind, rule in _RULES[_OF_WHOLE:]:
            if rule.search(text):
                return kind
    return OTHER


def inductor_kind(name: str) -> str | None:
    """Return the kind of a Triton kernel of Inductor, such as `poi`, `red`, `per` or `tem`.

    Kernels of torch 2.0, whose names do not contain the kind, are `unnamed`. The result for all
    other kernels is None.
    """
    match = INDUCTOR_TRITON.search(name)
    if match is None:
        return None
    return match["kind"] or ("tem" if name[7:10] != "_0d" and not name[8].isdigit() else "unnamed")
