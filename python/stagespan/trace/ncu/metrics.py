"""The metrics of ncu that are looked at: their names, and their labels on its page of details."""

from __future__ import annotations

from collections.abc import Mapping

DURATION = "gpu__time_duration.sum"
COMPUTE = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
MEMORY = "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"
DRAM = "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"
L1 = "l1tex__throughput.avg.pct_of_peak_sustained_active"
L2 = "lts__throughput.avg.pct_of_peak_sustained_elapsed"
ACHIEVED = "sm__warps_active.avg.pct_of_peak_sustained_active"
THEORETICAL = "sm__maximum_warps_per_active_cycle_pct"
WAVES = "launch__waves_per_multiprocessor"
REGISTERS = "launch__registers_per_thread"
ISSUED = "smsp__issue_active.avg.per_cycle_active"
ISSUED_PERCENT = "smsp__issue_active.avg.pct_of_peak_sustained_active"
ELIGIBLE = "smsp__warps_eligible.avg.per_cycle_active"
CYCLES_PER_ISSUE = "smsp__average_warp_latency_per_inst_issued.ratio"
DRAM_BYTES = "dram__bytes.sum"
DRAM_RATE = "dram__bytes.sum.per_second"
DRAM_READ, DRAM_WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
SM_CLOCK = "sm__cycles_elapsed.avg.per_second"
SMSP_CLOCK = "smsp__cycles_elapsed.avg.per_second"
DRAM_CLOCK = "dram__cycles_elapsed.avg.per_second"
DRAM_PEAK = "dram__bytes.sum.peak_sustained"
TENSOR = (
    "sm__inst_executed_pipe_tensor.sum",
    "smsp__inst_executed_pipe_tensor.sum",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",
    "sm__inst_executed_pipe_tensor_op_hmma.avg.pct_of_peak_sustained_active",
)
"""Any of them above 0: the tensor cores worked."""

BY_LABEL: Mapping[tuple[str, str], str] = {
    ("Duration", "second"): DURATION,
    ("Compute (SM) Throughput", "%"): COMPUTE,
    ("SM [%]", "%"): COMPUTE,
    ("Memory Throughput", "%"): MEMORY,
    ("Memory [%]", "%"): MEMORY,
    ("Memory Throughput", "byte/second"): DRAM_RATE,
    ("DRAM Throughput", "%"): DRAM,
    ("L1/TEX Cache Throughput", "%"): L1,
    ("L2 Cache Throughput", "%"): L2,
    ("SOL DRAM", "%"): DRAM,
    ("SOL L1/TEX Cache", "%"): L1,
    ("SOL L2 Cache", "%"): L2,
    ("SM Frequency", "hz"): SM_CLOCK,
    ("DRAM Frequency", "hz"): DRAM_CLOCK,
    ("Achieved Occupancy", "%"): ACHIEVED,
    ("Theoretical Occupancy", "%"): THEORETICAL,
    ("Waves Per SM", ""): WAVES,
    ("Registers Per Thread", "register/thread"): REGISTERS,
    ("Issued Warp Per Scheduler", ""): ISSUED,
    ("Eligible Warps Per Scheduler", "warp"): ELIGIBLE,
    ("Warp Cycles Per Issued Instruction", "cycle"): CYCLES_PER_ISSUE,
    ("Block Limit Registers", "block"): "launch__occupancy_limit_registers",
    ("Block Limit Shared Mem", "block"): "launch__occupancy_limit_shared_mem",
    ("Block Limit Warps", "block"): "launch__occupancy_limit_warps",
    ("Block Limit SM", "block"): "launch__occupancy_limit_blocks",
    ("Block Limit Barriers", "block"): "launch__occupancy_limit_barriers",
}
"""Label and unit on the page of details, and the metric that stands behind it."""

LIMITS = {
    "launch__occupancy_limit_registers": "registers",
    "launch__occupancy_limit_shared_mem": "shared memory",
    "launch__occupancy_limit_warps": "the block's size",
    "launch__occupancy_limit_blocks": "the number of blocks",
    "launch__occupancy_limit_barriers": "barriers",
}
"""What limits how many blocks share a multiprocessor."""

STALLED = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
STALLED_LATENCY = "smsp__average_warp_latency_issue_stalled_{}.ratio"
STALLED_PERCENT = "smsp__warp_issue_stalled_{}_per_warp_active.pct"
STALLS = {
    "long_scoreboard": "data from L1, L2 or device memory",
    "short_scoreboard": "shared memory or special functions",
    "lg_throttle": "the queue of global and local memory",
    "mio_throttle": "the queue of shared memory and special functions",
    "tex_throttle": "the texture queue",
    "drain": "its last writes to memory",
    "membar": "a memory barrier",
    "math_pipe_throttle": "a busy arithmetic pipe",
    "barrier": "other warps at a barrier",
    "wait": "a fixed latency between instructions",
    "branch_resolving": "a branch's target",
    "no_instruction": "instructions to be fetched",
    "imc_miss": "a constant that was not in its cache",
    "dispatch_stall": "the dispatcher",
    "sleeping": "its own sleep",
    "gmma": "other warps of its group",
    "misc": "something else",
}
"""Why a warp could not go on: what it waited for. `not_selected` is no wait: it was ready."""
