"""Names of CPU types that PVE knows without a custom model: QEMU's x86-64 models as PVE lists them."""

from __future__ import annotations

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
_GENERIC = "host kvm32 kvm64 max qemu32 qemu64 x86-64-v2 x86-64-v2-AES x86-64-v3 x86-64-v4"

CPU_MODELS = frozenset(f"{_INTEL} {_AMD} {_GENERIC}".split())
