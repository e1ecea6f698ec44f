"""The options as flags of a command line."""

from __future__ import annotations

from .options import Options

_HELP = {
    "nproc": ("N", "processes to start (default: one per visible accelerator)"),
    "view": ("NAME", "what the script sees: global (whole batches) or local (a rank's rows, as under plain DDP)"),
    "tail": ("NAME", "in the local view, rows that do not go round: pad (as torch) or exact (default: pad)"),
    "batch": ("NAME", "whose rows batch_size counts: global (all ranks') or per_device (each rank's)"),
    "lr_scale": ("RULE", "learning rates of batches that grow: linear, sqrt or a number"),
    "warmup": ("STEPS", "steps, or '5 epochs', until learning rates are scaled"),
    "report": ("", "print at the end what was distributed, gathered and sent"),
    "sync_batchnorm": ("", "leave BatchNorm with each rank's rows"),
    "batch_dims": ("A=D,..", "batch dimension of a module's arguments, by name; D is a number or none"),
    "accumulate": ("N", "backwards per optimizer step (default: learned from the script)"),
    "bucket_cap_mb": ("MIB", "size of DDP's gradient buckets, or auto to measure some (default: 25)"),
    "gradient_as_bucket_view": ("", "let .grad share the buckets' memory; =auto to measure it"),
    "static_graph": ("", "promise DDP that every step uses the same parameters in the same way"),
    "find_unused_parameters": ("", "passed to DDP; never needed"),
    "comm_hook": ("NAME", "send gradients as fp16, bf16, fp16_ef, bf16_ef, powersgd, or auto: no longer exact"),
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
