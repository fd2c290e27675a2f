"""CPU types that PVE knows without a custom model, QEMU's x86-64 models among them, and what a VM may ask for."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pve_double.schema import BadFormat

_INTEL = """
486 pentium pentium2 pentium3 coreduo core2duo Conroe Penryn Nehalem Nehalem-IBRS Westmere Westmere-IBRS
SandyBridge SandyBridge-IBRS IvyBridge IvyBridge-IBRS Haswell Haswell-IBRS Haswell-noTSX Haswell-noTSX-IBRS
Broadwell Broadwell-IBRS Broadwell-noTSX Broadwell-noTSX-IBRS Skylake-Client Skylake-Client-IBRS
Skylake-Client-noTSX-IBRS Skylake-Client-v4 Skylake-Server Skylake-Server-IBRS Skylake-Server-noTSX-IBRS
Skylake-Server-v4 Skylake-Server-v5 Cascadelake-Server Cascadelake-Server-noTSX Cascadelake-Server-v2
Cascadelake-Server-v4 Cascadelake-Server-v5 Cooperlake Cooperlake-v2 Icelake-Client Icelake-Client-noTSX
Icelake-Server Icelake-Server-noTSX Icelake-Server-v3 Icelake-Server-v4 Icelake-Server-v5 Icelake-Server-v6
Icelake-Server-v7 SapphireRapids SapphireRapids-v2 SapphireRapids-v3 GraniteRapids GraniteRapids-v2 SierraForest
ClearwaterForest KnightsMill
"""
_AMD = """
athlon phenom Opteron_G1 Opteron_G2 Opteron_G3 Opteron_G4 Opteron_G5 EPYC EPYC-IBPB EPYC-v3 EPYC-v4 EPYC-Rome
EPYC-Rome-v2 EPYC-Rome-v3 EPYC-Rome-v4 EPYC-Milan EPYC-Milan-v2 EPYC-Genoa EPYC-Turin
"""
_GENERIC = "host kvm32 kvm64 max qemu32 qemu64"
_BUILT_IN = "x86-64-v2 x86-64-v2-AES x86-64-v3 x86-64-v4"
_FLAGS = """
aes amd-no-ssb amd-ssbd hv-evmcs hv-tlbflush ibpb md-clear nested-virt pcid pdpe1gb spec-ctrl ssbd virt-ssbd
"""

REPORTED_MODELS = tuple(sorted(f"{_INTEL} {_AMD} {_GENERIC}".split(), key=str.lower))
"""What a custom model may pass for."""
CPU_MODELS = frozenset((*REPORTED_MODELS, *_BUILT_IN.split()))
VM_FLAGS = tuple(_FLAGS.split())
"""The flags that a VM may switch without a custom model."""


def check_vm_cpu(cpu: Mapping[str, str]) -> None:
    """Raises BadFormat as qemu-server's CPUConfig (validate_vm_cpu_conf) refuses a CPU for a VM."""
    kind = cpu.get("cputype", "")
    if not kind or kind == "0":
        raise BadFormat("CPU is missing cputype\n")
    if kind.startswith("custom-"):
        # The node has no custom models.
        raise BadFormat(f"Custom cputype '{kind.removeprefix('custom-')}' not found\n")
    if kind not in CPU_MODELS:
        raise BadFormat(f"Built-in cputype '{kind}' is not defined (missing 'custom-' prefix?)\n")
    flag = rf"[+-]({'|'.join(VM_FLAGS)})"
    if (flags := cpu.get("flags")) and not re.fullmatch(f"{flag}(;{flag})*", flags):
        raise BadFormat(f"VM-specific CPU flags must be a subset of: {', '.join(VM_FLAGS)}\n")
    if "reported-model" in cpu:
        raise BadFormat("Property 'reported-model' not allowed in VM-specific CPU config.\n")
