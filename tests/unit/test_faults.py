# SPDX-License-Identifier: Apache-2.0
import pytest

from slurm_colloc.gpu.failure import TAIL_BYTES, Outcome, outcome_of, tried_mib

TORCH_OOM = (
    b"Traceback (most recent call last):\n"
    b'  File "train.py", line 9, in <module>\n'
    b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 64.00 MiB. GPU 0 has a capacity of 79.18 GiB\n"
)


@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        (TORCH_OOM, Outcome.GPU_OOM),
        (b"torch.cuda.OutOfMemoryError: HIP\n", Outcome.GPU_OOM),
        (b"RuntimeError: CUDA error: out of memory\n", Outcome.GPU_OOM),
        (b"failed call to cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY", Outcome.GPU_OOM),
        (b"cudaErrorMemoryAllocation: out of memory\n", Outcome.GPU_OOM),
        (b"RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", Outcome.GPU_OOM),
        (b"jaxlib.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate", Outcome.GPU_OOM),
        (b"cupy: Unable to allocate 3 GiB", Outcome.GPU_OOM),
        # On a MIG slice NVML forbids what PyTorch's report of an out of memory asks.
        (b'RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at "/pytorch/c10/cuda/CUDACachingAllocator.cpp":1154,'
         b" please report a bug to PyTorch.\n", Outcome.GPU_OOM),
        (b'RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at "../c10/cuda/CUDACachingAllocator.cpp":830,',
         Outcome.GPU_OOM),
        (b'RuntimeError: !handles_.at(i) INTERNAL ASSERT FAILED at "../c10/cuda/CUDACachingAllocator.cpp":430,',
         Outcome.GPU_OOM),
        (b"RuntimeError: CUDA driver error: out of memory\n", Outcome.GPU_OOM),
        (b"cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8,000,000,000 bytes\n", Outcome.GPU_OOM),
        (b"ggml_backend_cuda_buffer_type_alloc_buffer: allocating 9000.00 MiB on device 0: cudaMalloc failed: out of"
         b" memory\n", Outcome.GPU_OOM),
        (b"ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when",
         Outcome.GPU_OOM),
        (b"cudaMallocAsync of size 12 bytes failed: out of memory (CUDA error #2 (cudaErrorMemoryAllocation))\n",
         Outcome.GPU_OOM),
        # Other assertions of PyTorch are no question of memory.
        (b'RuntimeError: !block->expandable_segment_ INTERNAL ASSERT FAILED at "../c10/cuda/CUDACachingAllocator.cpp"',
         Outcome.FAILED),
        (b'RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at "../torch/csrc/distributed/c10d/nvml.cpp":12',
         Outcome.FAILED),
        (b"MemoryError: out of memory\n", Outcome.FAILED),
        (b"RuntimeError: CUDA error: an illegal memory access was encountered\n", Outcome.GPU_FAULT),
        (b"cudaErrorIllegalAddress", Outcome.GPU_FAULT),
        (b"CUDA error: unspecified launch failure\n", Outcome.GPU_FAULT),
        (b"CUDA_ERROR_MPS_CLIENT_TERMINATED", Outcome.GPU_FAULT),
        (b"CUDA_ERROR_MPS_RPC_FAILURE", Outcome.GPU_FAULT),
        # As PyTorch 2.11 printed them: after SIGKILL of the server, after terminate_client, and over the pinned limit.
        (b"torch.AcceleratorError: CUDA error: the remote procedural call between the MPS server and the MPS client"
         b" failed\nSearch for `cudaErrorMpsRpcFailure' in", Outcome.GPU_FAULT),
        (b"RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED_CUDART\n", Outcome.GPU_FAULT),
        (b"torch.AcceleratorError: CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation' in",
         Outcome.GPU_OOM),
        (b"MPS client failed to connect to the MPS control daemon or the MPS server", Outcome.GPU_FAULT),
        (b"numpy._core._exceptions._ArrayMemoryError: Unable to allocate 8.0 TiB for an array", Outcome.HOST_OOM),
        (b"slurmstepd: error: Detected 1 oom_kill event in StepId=7.3. Some of the step tasks have been OOM Killed.\n",
         Outcome.HOST_OOM),
        (b"slurmstepd: error: Detected 2 oom-kill event(s) in step 7.3 cgroup.\n", Outcome.HOST_OOM),
        (b"srun: error: node1: task 0: Out Of Memory\n", Outcome.HOST_OOM),
        (b"slurmstepd: error: *** STEP 7.3 ON n1 CANCELLED AT 2026-01-02T03:04:05 DUE TO TIME LIMIT ***\n",
         Outcome.TIME_LIMIT),
        (b"slurmstepd: error: *** STEP 7.3 ON n1 CANCELLED AT 2026-01-02T03:04:05 ***\n", Outcome.STOPPED),
        (b"ValueError: no such file\n", Outcome.FAILED),
        (b"the word CANCELLED AT in a log\nsrun is fine, Out Of Memory is not\n", Outcome.FAILED),
        (b"", Outcome.FAILED),
    ],
)  # fmt: skip
def test_what_a_task_died_of_stands_in_its_last_words(said: bytes, outcome: Outcome) -> None:
    found, told = outcome_of(1, b"epoch 1\n" + said)
    assert found is outcome
    assert bool(told) == (outcome is not Outcome.FAILED)
    assert told in said.decode()


def test_who_ended_well_is_done_whatever_was_printed() -> None:
    assert outcome_of(0, TORCH_OOM + b"trying half the batch\n") == (Outcome.DONE, "")
    assert outcome_of(0, TORCH_OOM) == (Outcome.DONE, "")


def test_what_slurm_says_comes_before_what_the_task_said() -> None:
    killed = b"slurmstepd: error: Detected 1 oom_kill event in StepId=7.3\n"
    assert outcome_of(137, TORCH_OOM + killed)[0] is Outcome.HOST_OOM
    late = b"slurmstepd: error: *** STEP 7.3 ON n1 CANCELLED AT 2026-01-02T03:04:05 DUE TO TIME LIMIT ***\n"
    assert outcome_of(-15, TORCH_OOM + late)[0] is Outcome.TIME_LIMIT


def test_a_broken_context_comes_before_the_memory_it_cannot_allocate_then() -> None:
    both = b"CUDA error: an illegal memory access was encountered\nCUDA_ERROR_OUT_OF_MEMORY\n"
    assert outcome_of(1, both)[0] is Outcome.GPU_FAULT


def test_a_failed_assertion_is_the_tasks_own() -> None:
    said = b"torch.AcceleratorError: CUDA error: device-side assert triggered\nSearch for `cudaErrorAssert' in\n"
    assert outcome_of(1, said) == (
        Outcome.FAILED,
        "torch.AcceleratorError: CUDA error: device-side assert triggered",
    )


def test_only_the_end_is_searched_and_the_line_is_short_and_printable() -> None:
    assert outcome_of(1, TORCH_OOM + b"x" * TAIL_BYTES) == (Outcome.FAILED, "")
    outcome, told = outcome_of(1, b"\x1b[31m\xff" + b"y" * 5000 + b"CUDA out of memory" + b"z" * 5000)
    assert outcome is Outcome.GPU_OOM
    assert "CUDA out of memory" in told
    assert len(told) <= 200
    assert outcome_of(1, b"\x1b[31mCUDA out of memory\xff")[1].isprintable()


def test_the_search_is_quick_on_hostile_output() -> None:
    for said in (b"*** " * 20_000, b"srun: error: " * 6_000, b"numpy." * 12_000):
        assert outcome_of(1, said)[0] is Outcome.FAILED


def test_what_cupy_and_llama_could_not_get() -> None:
    assert (
        tried_mib(b"cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8,000,000,000 bytes (allocated") == 7630
    )
    assert tried_mib(b"buffer: allocating 9000.00 MiB on device 0: cudaMalloc failed: out of memory\n") == 9000
    assert tried_mib(b"buffer: allocating 9000.00 MiB on device 0\n") is None
