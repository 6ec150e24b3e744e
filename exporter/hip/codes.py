"""The names of hipError_t, from hip_runtime_api.h of HIP 5.2; 911 and 912 are of later releases."""

from __future__ import annotations

from functools import cache

_NAMES = """
    1 InvalidValue 2 OutOfMemory 3 NotInitialized 4 Deinitialized 5 ProfilerDisabled 6 ProfilerNotInitialized
    7 ProfilerAlreadyStarted 8 ProfilerAlreadyStopped 9 InvalidConfiguration 12 InvalidPitchValue 13 InvalidSymbol
    17 InvalidDevicePointer 21 InvalidMemcpyDirection 35 InsufficientDriver 52 MissingConfiguration
    53 PriorLaunchFailure 98 InvalidDeviceFunction 100 NoDevice 101 InvalidDevice 200 InvalidImage
    201 InvalidContext 202 ContextAlreadyCurrent 205 MapFailed 206 UnmapFailed 207 ArrayIsMapped 208 AlreadyMapped
    209 NoBinaryForGpu 210 AlreadyAcquired 211 NotMapped 212 NotMappedAsArray 213 NotMappedAsPointer
    214 ECCNotCorrectable 215 UnsupportedLimit 216 ContextAlreadyInUse 217 PeerAccessUnsupported
    218 InvalidKernelFile 219 InvalidGraphicsContext 300 InvalidSource 301 FileNotFound
    302 SharedObjectSymbolNotFound 303 SharedObjectInitFailed 304 OperatingSystem 400 InvalidHandle 401 IllegalState
    500 NotFound 600 NotReady 700 IllegalAddress 701 LaunchOutOfResources 702 LaunchTimeOut
    704 PeerAccessAlreadyEnabled 705 PeerAccessNotEnabled 708 SetOnActiveProcess 709 ContextIsDestroyed 710 Assert
    712 HostMemoryAlreadyRegistered 713 HostMemoryNotRegistered 719 LaunchFailure 720 CooperativeLaunchTooLarge
    801 NotSupported 900 StreamCaptureUnsupported 901 StreamCaptureInvalidated 902 StreamCaptureMerge
    903 StreamCaptureUnmatched 904 StreamCaptureUnjoined 905 StreamCaptureIsolation 906 StreamCaptureImplicit
    907 CapturedEvent 908 StreamCaptureWrongThread 910 GraphExecUpdateFailure 911 InvalidChannelDescriptor
    912 InvalidTexture 999 Unknown 1052 RuntimeMemory 1053 RuntimeOther
"""


def error_name(code: int) -> str:
    """Return the constant of a code, the first of two; empty where the header has none."""
    return names().get(code, "")


@cache
def names() -> dict[int, str]:
    """Return the constants by code."""
    words = _NAMES.split()
    return {int(code): f"hipError{name}" for code, name in zip(words[::2], words[1::2], strict=True)}
