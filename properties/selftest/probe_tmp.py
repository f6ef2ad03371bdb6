import sys, os, torch, traceback
sys.path.insert(0, os.path.dirname(__file__))
import triton_kernels as K
F32, F16, BF, E4, E5 = torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2
U8, U16 = torch.uint8, torch.int16
def patterns(dt):
    if dt in (E4, E5): return torch.arange(256, dtype=torch.int32).to(U8).view(dt)
    return torch.arange(65536, dtype=torch.int32).to(U16).view(dt)
def halfway():
    base = patterns(BF).view(U16).to(torch.int32) << 16
    near = [base + d for d in (0, 0x7fff, 0x8000, 0x8001, 0x7ffe, 1, 0xffff)]
    return torch.cat(near).view(F32)
def f8_inputs():
    out = []
    for dt in (E4, E5):
        v = patterns(dt).float(); v = v[torch.isfinite(v)].sort().values
        mid = (v[1:] + v[:-1]) / 2
        for x in (v, mid, torch.nextafter(mid, torch.tensor(9e9)), torch.nextafter(mid, torch.tensor(-9e9))): out.append(x)
    extra = torch.tensor([448., 456, 464, 465, 480, 500, 1e4, 57344, 60000, 61440, 61441, 65504, 65536, 1e10, 3e38, float("inf"), float("nan"), 0., 1e-20, 2**-10, 2**-9*.75, 2**-17, 2**-17*1.01, 2**-10*1.001])
    out += [extra, -extra]
    x = torch.cat(out); pad = (-len(x)) % 256
    return torch.cat([x, torch.zeros(pad)])
def convert(x, dt, dev, rounding=None, N=256):
    if x.numel() % 4096 == 0: N = 4096
    x = x.to(dev); y = torch.empty(x.shape, dtype=dt, device=dev)
    for i in range(0, x.numel(), N): K.convert[(1,)](x[i:], y[i:], N, rounding)
    return y.cpu()
def sweep(dev):
    r = {}
    def put(name, fn):
        try: r[name] = fn()
        except Exception as e: r[name] = f"{type(e).__name__}: {str(e)[:300]}"
    put("f32_bf", lambda: convert(halfway(), BF, dev))
    put("f32_bf_rtz", lambda: convert(halfway()[:65536*2], BF, dev, "rtz"))
    put("bf_f32", lambda: convert(patterns(BF), F32, dev))
    put("bf_f16", lambda: convert(patterns(BF), F16, dev))
    put("f16_bf", lambda: convert(patterns(F16), BF, dev))
    g = torch.Generator().manual_seed(1)
    d = (1 + torch.randint(0, 128, (4096,), generator=g) / 128 + 2**-8).double(); d = d + torch.tensor([0., 2**-40, -2**-40, 2**-30]).repeat(1024)
    put("f64_bf", lambda: convert(d, BF, dev))
    put("i32_bf", lambda: convert(torch.tensor([2**24+2**16+1, 2**30+2**22+1, 257, 2**25+2**17+1]).to(torch.int32).repeat(64), BF, dev))
    for n, t in (("e4", E4), ("e5", E5)):
        put("f32_"+n, lambda: convert(f8_inputs(), t, dev))
        put("f16_"+n, lambda: convert(patterns(F16), t, dev))
        put("bf_"+n, lambda: convert(patterns(BF), t, dev))
        put("f16_"+n+"_rtz", lambda: convert(patterns(F16), t, dev, "rtz"))
        put("f32_"+n+"_rtz", lambda: convert(f8_inputs(), t, dev, "rtz"))
        for m, u in (("f32", F32), ("f16", F16), ("bf", BF)): put(n+"_"+m, lambda: convert(patterns(t), u, dev))
    for n, t in (("bf", BF), ("f16", F16), ("e5", E5), ("e4", E4), ("f32", F32)):
        x = (torch.randn(1024, generator=g) * 3).to(t); y = torch.randn(1024, generator=g).to(t)
        if t in (BF, F16): x[:8] = torch.tensor([float("nan"), 1, float("nan"), float("inf"), float("-inf"), 0., -0., 1e-40]); y[:8] = torch.tensor([1, float("nan"), float("nan"), 1, 2, -0., 0., -1e-40])
        for op in ("add","sub","mul","div","maximum","minimum","less","equal","not_equal","where","neg","abs","fma","clamp","scalar"):
            if t in (E4, E5) and op not in ("add", "mul", "maximum", "less", "neg", "where", "abs"): continue
            z = torch.empty(1024, dtype=F32 if op == "div" else t, device=dev)
            if op in ("less","equal","not_equal"): z = torch.empty(1024, dtype=torch.int32, device=dev)
            def go():
                K.binary[(1,)](x.to(dev), y.to(dev), z, 1024, op); return z.cpu()
            put(f"{op}_{n}", go)
    for n, t in (("bf", BF), ("f16", F16), ("e5", E5)):
        x = torch.randn(64, 256, generator=g).to(t)
        for op in ("sum","member_sum","max","min","argmax","generic","last_of_cumsum"):
            for how in ("f32", n):
                z = torch.empty(64, dtype=torch.int32 if op == "argmax" else (F32 if how == "f32" else t), device=dev)
                def go():
                    K.reduce[(1,)](x.to(dev), z, 64, 256, op); return z.cpu()
                put(f"{op}_{n}_{how}", go)
    r["sum_in"] = torch.randn(64, 256, generator=torch.Generator().manual_seed(5)).to(BF)
    z = torch.empty(64, dtype=F32, device=dev); K.reduce[(1,)](r["sum_in"].to(dev), z, 64, 256, "sum"); r["sum_out"] = z.cpu()
    frac = torch.arange(0, 2**13, 2**3)  # low 13 bits
    a32 = ((torch.tensor(1.0).view(torch.int32) + torch.cat([frac, frac + 2**13])).to(torch.int32).view(F32)).reshape(-1, 32)
    for M in (16, 64, 128):
        for p in ("tf32", "tf32x3", "ieee", "bf16x3", "bf16x6"):
            for side in "lr":
                def go():
                    n = 32
                    rows = a32[:64]
                    rows = rows if M == 64 else (rows[::4] if M == 16 else torch.cat([rows, rows]))
                    eye = torch.eye(32)
                    c = torch.empty(M, 32, device=dev)
                    if side == "l": K.dot[(1,)](rows.contiguous().to(dev), eye.to(dev), c, M, 32, 32, p)
                    else:
                        c = torch.empty(M, M, device=dev); K.dot[(1,)](torch.eye(M).to(dev), (rows.repeat(1, M//32) if M > 32 else rows[:, :M]).contiguous()[:M].to(dev), c, M, M, M, p)
                    return c.cpu()
                put(f"dot_{p}_{M}_{side}", go)
    for n, t in (("bf", BF), ("f16", F16), ("e4", E4), ("e5", E5), ("f32", F32)):
        for M, N, Kk in ((16, 16, 32), (64, 64, 256), (128, 128, 128)):
            a = torch.randn(M, Kk, generator=g).to(t); b = torch.randn(Kk, N, generator=g).to(t)
            for o, ot in (("f32", F32), ("f16", F16)):
                if o == "f16" and n in ("bf", "f32"): continue
                def go():
                    c = torch.empty(M, N, dtype=ot, device=dev); K.dot[(1,)](a.to(dev), b.to(dev), c, M, N, Kk, "tf32"); return c.cpu()
                put(f"mm_{n}_{M}_{Kk}_{o}", go)
            r[f"mmin_{n}_{M}_{Kk}"] = (a, b)
    def atom():
        t = torch.zeros(2, dtype=BF, device=dev); K.add_atomically[(1,)](torch.arange(16, device=dev).to(BF), t, 16); return t.cpu()
    put("atomic", atom)
    return r
if __name__ == "__main__":
    if sys.argv[1] == "cuda":
        import triton; print(torch.__version__, triton.__version__, torch.cuda.get_device_name())
        r = sweep("cuda"); torch.save(r, sys.argv[2])
    else:
        from flashcheck import interpreter
        with interpreter.faithful(): torch.save(sweep("cpu"), sys.argv[2])
    for k, v in r.items() if sys.argv[1] == "cuda" else []:
        if isinstance(v, str): print(k, v)
