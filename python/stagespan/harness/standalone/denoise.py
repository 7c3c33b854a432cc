"""Runs one step of a denoising loop."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Mapping
from typing import Any

import torch

from stagespan.harness.standalone.fit import ReplayError, fit, signature_of

LOOP_STEPS = (2, 10)  # steps of the scheduler's loop, of which only the first one runs
MODELS = ("dit", "transformer", "unet", "transformer_2")
SAMPLES = ("latents", "latent", "hidden_states", "sample", "x", "noisy_latents", "noise", "img")
TIMES = ("timestep", "timesteps", "t", "time", "sigma")
PROMPTS = (
    *("prompt_embeds", "prompt_emb_posi", "prompt_emb", "encoder_hidden_states", "context"),
    *("prompt_embedding", "text_embeds", "text_embeddings", "txt"),
)
GUIDANCES = ("guidance_scale", "cfg_scale", "true_cfg_scale")
SHIFTS = ("sigma_shift", "shift", "flow_shift")
JOINED_TO_SAMPLE = ("ref_latent", "condition", "latent_condition")  # on the channel axis
# Parameters of models, with the other names that pipelines use for them.
OTHER_NAMES = {
    "pooled_projections": ("pooled_prompt_embeds",),
    "img_ids": ("latent_image_ids", "image_ids"),
    "txt_ids": ("text_ids",),
    "encoder_attention_mask": ("prompt_attention_mask", "prompt_embeds_mask"),
    "encoder_hidden_states_mask": ("prompt_embeds_mask",),
    "encoder_hidden_states_image": ("image_embeds",),
    "clip_fea": ("clip_feature",),
    "joint_attention_kwargs": ("attention_kwargs",),
}


def denoiser_of(stage: Any) -> tuple[Any, Any, Any] | None:
    """Return (holder, model, scheduler) of a stage, or of the object of a method, or None."""
    for holder in (stage, getattr(stage, "__self__", None)):
        scheduler = getattr(holder, "scheduler", None)
        models = (getattr(holder, name, None) for name in MODELS)
        model = next((found for found in models if callable(found)), None)
        if model is not None and callable(getattr(scheduler, "step", None)):
            return holder, model, scheduler
    return None


def first_name(names: tuple[str, ...], inputs: Mapping[str, Any]) -> str | None:
    """Return the first of the names for which the inputs contain a value, or None."""
    return next((name for name in names if inputs.get(name) is not None), None)


class DenoiseStep:
    """Runs the model once (twice with guidance) and the scheduler's ``step`` once.

    ``stage``, or the object if ``stage`` is a method, has the model as ``dit``, ``transformer`` or
    ``unet``, and the scheduler as ``scheduler``. A copy of the scheduler is used, at the first of
    two timesteps. Raises ReplayError if the inputs do not fit the model's ``forward``.
    """

    def __init__(self, stage: Any, inputs: Mapping[str, Any]) -> None:
        parts = denoiser_of(stage)
        if parts is None:
            raise ReplayError("the stage has no model (dit, transformer or unet) with a scheduler")
        self.holder, self.model, scheduler = parts
        self.inputs = dict(inputs)
        try:
            self.scheduler = copy.deepcopy(scheduler)
        except Exception:  # a scheduler that cannot be copied is used itself
            self.scheduler = scheduler
        name = first_name(SAMPLES, self.inputs)
        if name is None or not isinstance(self.inputs[name], torch.Tensor):
            names = ", ".join(SAMPLES)
            raise ReplayError(f"the inputs contain no tensor with one of the names {names}")
        self.latents = self.inputs[name]
        self.prompt = first_name(PROMPTS, self.inputs)
        self.negative = self._negative_name()
        self.guidance = self._guidance()
        self.timestep: Any = None
        self.predict = getattr(self.holder, "predict_noise_with_cfg", None)
        if not callable(self.predict):
            self.predict = None
            self.sample_name, self.time_name = self._model_names()
            self.conditions = [self._conditions(self.inputs)]
            if self.negative is not None and self.guidance != 1.0:
                self.conditions.append(self._conditions(self._negated()))
        self.reset()

    def says(self) -> str:
        """Describe one iteration."""
        model, scheduler = type(self.model).__qualname__, type(self.scheduler).__qualname__
        return f"one step of {model} and {scheduler}, whose arguments were guessed from their names"

    def reset(self) -> None:
        """Set the scheduler to the beginning of a loop of two steps, outside the timed region."""
        parameters = signature_of(self.scheduler.set_timesteps).parameters
        settings: dict[str, Any] = {}
        shift = first_name(SHIFTS, self.inputs)
        if "shift" in parameters and shift is not None:
            settings["shift"] = self.inputs[shift]
        if "device" in parameters:
            settings["device"] = self.latents.device
        config = getattr(self.scheduler, "config", None)
        if "mu" in parameters and getattr(config, "use_dynamic_shifting", False):
            settings["mu"] = self.inputs.get("mu") or 1.0
        for steps in LOOP_STEPS:
            try:
                self.scheduler.set_timesteps(steps, **settings)
                break
            except (ValueError, IndexError):  # the scheduler does not accept so few steps
                if steps == LOOP_STEPS[-1]:
                    raise
        if hasattr(self.scheduler, "set_begin_index"):
            self.scheduler.set_begin_index(0)
        self.timestep = self.scheduler.timesteps[0]

    def __call__(self) -> Any:
        """Run the step without gradients, as such loops do, and return the new latents."""
        with torch.no_grad():
            with self._autocast():
                noise = self._predict_by_stage() if self.predict else self._predict()
            return self._advance(noise)

    def _model_names(self) -> tuple[str, str | None]:
        """Return the names of ``forward``'s parameters for the noisy sample and the timestep."""
        parameters = signature_of(self.model).parameters.values()
        names = [p.name for p in parameters if p.kind != p.VAR_KEYWORD]
        sample = next((name for name in SAMPLES if name in names), names[0] if names else "")
        return sample, next((name for name in TIMES if name in names), None)

    def _conditions(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the other arguments of ``forward``, from inputs with the same name or meaning."""
        arguments: dict[str, Any] = {}
        for parameter in signature_of(self.model).parameters.values():
            name = parameter.name
            variadic = parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD
            if name in (self.sample_name, self.time_name) or parameter.kind in variadic:
                continue
            if name == "return_dict":
                arguments[name] = False
            elif name in inputs:
                arguments[name] = inputs[name]
            elif name in PROMPTS and self.prompt is not None:
                arguments[name] = inputs[self.prompt]
            else:
                other = first_name(OTHER_NAMES.get(name, ()), inputs)
                if other is not None:
                    arguments[name] = inputs[other]
        needed = {self.sample_name: None, **({self.time_name: None} if self.time_name else {})}
        fit(self.model, {**arguments, **needed})
        return arguments

    def _guidance(self) -> float:
        """Return the guidance scale of the inputs, else of the stage, else Wan's default.

        Wan's default applies only if there is a negative prompt.
        """
        for source in (self.inputs, getattr(self.holder, "__dict__", {})):
            name = first_name(GUIDANCES, source)
            if name is not None and isinstance(source[name], (int, float)):
                return float(source[name])
        return 5.0 if self.negative is not None else 1.0

    def _negative_name(self) -> str | None:
        if self.prompt is None:
            return None
        name = self.prompt
        guesses = (f"negative_{name}", name.replace("posi", "nega"), f"{name}_negative")
        return first_name(tuple(guess for guess in guesses if guess != name), self.inputs)

    def _negated(self) -> dict[str, Any]:
        """Return the inputs, with each ``x`` replaced by ``negative_x`` if that exists."""
        negated = dict(self.inputs)
        for name, value in self.inputs.items():
            positive = name.removeprefix("negative_")
            if positive != name and positive in negated and value is not None:
                negated[positive] = value
        if self.prompt is not None and self.negative is not None:
            negated[self.prompt] = self.inputs[self.negative]
        return negated

    def _autocast(self) -> Any:
        dtype = getattr(self.holder, "torch_dtype", None)
        device = getattr(self.holder, "device_type", None)
        if isinstance(device, str) and dtype in (torch.float16, torch.bfloat16):
            return torch.autocast(device_type=device, dtype=dtype)
        return contextlib.nullcontext()

    def _sample(self) -> Any:
        """Return the latents with the type and the channels that the model takes."""
        extra = first_name(JOINED_TO_SAMPLE, self.inputs)
        sample = self.latents
        if hasattr(self.scheduler, "scale_model_input"):
            sample = self.scheduler.scale_model_input(sample, self.timestep)
        if extra is not None:
            sample = torch.cat([sample, self.inputs[extra].to(sample)], dim=1)
        dtype = getattr(self.holder, "torch_dtype", None) or getattr(self.model, "dtype", None)
        if not isinstance(dtype, torch.dtype):
            parameters = getattr(self.model, "parameters", tuple)
            dtype = next((p.dtype for p in parameters() if p.is_floating_point()), sample.dtype)
        return sample.to(dtype) if dtype.itemsize > 1 else sample

    def _predict_by_stage(self) -> Any:
        """Return the noise that the stage's own ``predict_noise_with_cfg`` predicts."""
        sample = self._sample()
        named = {**self.inputs, "latents": sample, "timestep": self.timestep[None].to(sample)}
        parameters = signature_of(self.predict).parameters
        args, kwargs = fit(self.predict, {k: v for k, v in named.items() if k in parameters})
        return self.predict(*args, **kwargs) if self.predict else None

    def _predict(self) -> Any:
        """Return the noise that the model predicts.

        With guidance, this combines the predictions with and without the prompt.
        """
        sample = self._sample()
        prompt = self.inputs[self.prompt] if self.prompt is not None else None
        copies = 1
        if isinstance(prompt, torch.Tensor) and len(prompt) == 2 * len(sample):
            copies = 2  # both prompts are concatenated into one batch
        sample = torch.cat([sample] * copies)
        named = {self.sample_name: sample}
        if self.time_name is not None:
            named[self.time_name] = self._time(sample)
        noises = []
        for conditions in self.conditions:
            args, kwargs = fit(self.model, {**conditions, **named})
            noises.append(first_tensor(self.model(*args, **kwargs)))
        if copies == 2:
            negative, positive = noises[0].chunk(2)
            return negative + self.guidance * (positive - negative)
        if len(noises) == 2:
            return noises[1] + self.guidance * (noises[0] - noises[1])
        return noises[0]

    def _time(self, sample: Any) -> Any:
        """Return the timestep for each sample of the batch, or for each token in some pipelines."""
        time = self.timestep.to(sample.device)
        if getattr(getattr(self.holder, "config", None), "expand_timesteps", False):
            frames, height, width = sample.shape[-3:]
            return time.expand(len(sample), frames * -(-height // 2) * -(-width // 2))
        return time.expand(len(sample))

    def _advance(self, noise: Any) -> Any:
        """Run one step of the scheduler."""
        if noise is None:  # this rank does not have the output of the model
            return self.latents
        settings = {}
        if "return_dict" in signature_of(self.scheduler.step).parameters:
            settings["return_dict"] = False
        return first_tensor(self.scheduler.step(noise, self.timestep, self.latents, **settings))


def first_tensor(result: Any) -> Any:
    """Return the tensor in the tuple or output object of a model or scheduler."""
    if isinstance(result, (tuple, list)):
        return result[0]
    for name in ("sample", "prev_sample"):
        if hasattr(result, name):
            return getattr(result, name)
    return result
