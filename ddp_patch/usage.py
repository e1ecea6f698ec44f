"""The options as flags of a command line."""

from __future__ import annotations

from .options import Options

_HELP = {
    "nproc": ("N", "processes to start (default: one per visible accelerator)"),
    "view": ("NAME", "what the script sees: global (whole batches) or local (a rank's rows, as under plain DDP)"),
    "tail": ("NAME", "local view, last rows, fewer than ranks: pad repeats some, as torch; exact does not"),
    "batch": ("NAME", "whose rows batch_size counts: global (all ranks') or per_device (each rank's)"),
    "lr_scale": ("RULE", "by which learning rates grow with batches of per_device: linear, sqrt or a number"),
    "warmup": ("STEPS", "of --lr-scale: learning rates rise over so many steps, or over '5 epochs'"),
    "report": ("", "print at the end what was distributed, gathered and sent"),
    "sync_batchnorm": ("", "leave BatchNorm with each rank's rows"),
    "batch_dims": ("A=D,..", "batch dimension of a module's arguments, by name; D is a number or none"),
    "accumulate": ("N", "backwards per optimizer step (default: learned from the script)"),
    "bucket_cap_mb": ("MIB", "size of DDP's gradient buckets; auto tries some and keeps the fastest (default: 25)"),
    "gradient_as_bucket_view": ("", "let .grad share the buckets' memory; =auto tries both and keeps the faster"),
    "static_graph": ("", "promise DDP that every step uses the same parameters in the same way"),
    "find_unused_parameters": ("", "passed to DDP, where ddp_patch finds them by itself: not needed"),
    "comm_hook": ("NAME", "compress gradients, which is not exact: fp16, bf16, fp16_ef, bf16_ef, powersgd or auto"),
    "check_every": ("N", "compare the ranks' parameters and gradients before every Nth step"),
    "share_devices": ("", "let several ranks have one accelerator, to try a script out"),
    "timeout": ("SECONDS", "time a collective may take (default: 1800)"),
    "quiet": ("", "do not say at the start how many ranks run, nor what became the model"),
    "traceback": ("", "show ddp_patch's own frames in tracebacks"),
    "trace": ("FOLDER", "record where the ranks were last, for python -m ddp_patch trace FOLDER"),
}


def usage() -> str:
    """List all options as flags of a command line."""
    lines = []
    for name, (value, text) in _HELP.items():
        default = getattr(Options(), name)
        flag = f"--{'no-' if default is True else ''}{name.replace('_', '-')}"
        lines.append(f"  {f'{flag} {value}'.strip():<25} {text}\n")
    return "".join(lines)
