"""How much code a multiprocessor runs at full rate: `python studies/kernel_h200/instruction_cache.py`.

A loop of independent fused multiply-adds of 16 bytes each, at most 4 a cycle. In the last columns the warps start
apart; rates above 4 are an artefact of taking the longest warp's time where they do not overlap.
"""

import torch


def source(size: int) -> str:
    body = "".join(f'asm volatile("fma.rn.f32 %0,%0,%1,%1;":"+f"(x{j % 8}):"f"(b));' for j in range(size))
    init = "".join(f"float x{j}=threadIdx.x*.01f+{j};" for j in range(8))
    return (
        'extern "C" __global__ void k(float* out, long long* t, int n, int d){'
        + init
        + "float b=n*.1f; int w=threadIdx.x/32; __syncthreads(); for(int i=0;i<d*(w*7+w/4*3+1);i++) "
        + 'asm volatile("fma.rn.f32 %0,%0,%1,%1;":"+f"(x0):"f"(b)); long long t0=clock64(); '
        + '_Pragma("unroll 1") for(int i=0;i<n;i++){'
        + body
        + "} long long t1=clock64(); out[blockIdx.x*blockDim.x+threadIdx.x]="
        + "+".join(f"x{j}" for j in range(8))
        + "; if((threadIdx.x&31)==0) t[blockIdx.x*32+w]=t1-t0; }"
    )


print("instructions per cycle and SM; columns: warps per SM 1, 4, 8, 12 in phase, then 4, 8, 12 out of phase")
for U in (96, 160, 224, 320, 448, 640, 896, 1280, 1792, 2560, 3584, 5120):
    k = torch.cuda._compile_kernel(source(U), "k")
    row = []
    for warps, d in ((1, 0), (4, 0), (8, 0), (12, 0), (4, 9), (8, 9), (12, 9)):
        o = torch.zeros(132 * 1024, device="cuda")
        t = torch.zeros(132 * 32, dtype=torch.int64, device="cuda")
        n = max(4, 60000 // U)
        for _ in range(2):
            k((132, 1, 1), (warps * 32, 1, 1), (o, t, n, d))
        torch.cuda.synchronize()
        row.append(round(warps * n * (U + 3) / t.max().item(), 2))
    print(f"{U * 16 / 1024:6.1f} KiB", row, flush=True)
