/* SPDX-License-Identifier: Apache-2.0 */
/* Error codes of the driver and the runtime, by the names that cuda.h and driver_types.h of CUDA 13.5 declare. */
#pragma once
#include <ctype.h>
#include <stddef.h>

#define DRIVER_ERRORS(X)                                                                                     \
	X(1, INVALID_VALUE) X(2, OUT_OF_MEMORY) X(3, NOT_INITIALIZED) X(4, DEINITIALIZED) X(5, PROFILER_DISABLED) \
	X(6, PROFILER_NOT_INITIALIZED) X(7, PROFILER_ALREADY_STARTED) X(8, PROFILER_ALREADY_STOPPED) \
	X(34, STUB_LIBRARY) X(36, CALL_REQUIRES_NEWER_DRIVER) X(46, DEVICE_UNAVAILABLE) \
	X(47, MULTICAST_RESOURCE_FULL) X(100, NO_DEVICE) X(101, INVALID_DEVICE) X(102, DEVICE_NOT_LICENSED) \
	X(200, INVALID_IMAGE) X(201, INVALID_CONTEXT) X(202, CONTEXT_ALREADY_CURRENT) X(205, MAP_FAILED) \
	X(206, UNMAP_FAILED) X(207, ARRAY_IS_MAPPED) X(208, ALREADY_MAPPED) X(209, NO_BINARY_FOR_GPU) \
	X(210, ALREADY_ACQUIRED) X(211, NOT_MAPPED) X(212, NOT_MAPPED_AS_ARRAY) X(213, NOT_MAPPED_AS_POINTER) \
	X(214, ECC_UNCORRECTABLE) X(215, UNSUPPORTED_LIMIT) X(216, CONTEXT_ALREADY_IN_USE) \
	X(217, PEER_ACCESS_UNSUPPORTED) X(218, INVALID_PTX) X(219, INVALID_GRAPHICS_CONTEXT) \
	X(220, NVLINK_UNCORRECTABLE) X(221, JIT_COMPILER_NOT_FOUND) X(222, UNSUPPORTED_PTX_VERSION) \
	X(223, JIT_COMPILATION_DISABLED) X(224, UNSUPPORTED_EXEC_AFFINITY) X(225, UNSUPPORTED_DEVSIDE_SYNC) \
	X(226, CONTAINED) X(227, INSUFFICIENT_LOADER_VERSION) X(300, INVALID_SOURCE) X(301, FILE_NOT_FOUND) \
	X(302, SHARED_OBJECT_SYMBOL_NOT_FOUND) X(303, SHARED_OBJECT_INIT_FAILED) X(304, OPERATING_SYSTEM) \
	X(400, INVALID_HANDLE) X(401, ILLEGAL_STATE) X(402, LOSSY_QUERY) X(500, NOT_FOUND) X(600, NOT_READY) \
	X(700, ILLEGAL_ADDRESS) X(701, LAUNCH_OUT_OF_RESOURCES) X(702, LAUNCH_TIMEOUT) \
	X(703, LAUNCH_INCOMPATIBLE_TEXTURING) X(704, PEER_ACCESS_ALREADY_ENABLED) X(705, PEER_ACCESS_NOT_ENABLED) \
	X(708, PRIMARY_CONTEXT_ACTIVE) X(709, CONTEXT_IS_DESTROYED) X(710, ASSERT) X(711, TOO_MANY_PEERS) \
	X(712, HOST_MEMORY_ALREADY_REGISTERED) X(713, HOST_MEMORY_NOT_REGISTERED) X(714, HARDWARE_STACK_ERROR) \
	X(715, ILLEGAL_INSTRUCTION) X(716, MISALIGNED_ADDRESS) X(717, INVALID_ADDRESS_SPACE) X(718, INVALID_PC) \
	X(719, LAUNCH_FAILED) X(720, COOPERATIVE_LAUNCH_TOO_LARGE) X(721, TENSOR_MEMORY_LEAK) \
	X(800, NOT_PERMITTED) X(801, NOT_SUPPORTED) X(802, SYSTEM_NOT_READY) X(803, SYSTEM_DRIVER_MISMATCH) \
	X(804, COMPAT_NOT_SUPPORTED_ON_DEVICE) X(805, MPS_CONNECTION_FAILED) X(806, MPS_RPC_FAILURE) \
	X(807, MPS_SERVER_NOT_READY) X(808, MPS_MAX_CLIENTS_REACHED) X(809, MPS_MAX_CONNECTIONS_REACHED) \
	X(810, MPS_CLIENT_TERMINATED) X(811, CDP_NOT_SUPPORTED) X(812, CDP_VERSION_MISMATCH) \
	X(900, STREAM_CAPTURE_UNSUPPORTED) X(901, STREAM_CAPTURE_INVALIDATED) X(902, STREAM_CAPTURE_MERGE) \
	X(903, STREAM_CAPTURE_UNMATCHED) X(904, STREAM_CAPTURE_UNJOINED) X(905, STREAM_CAPTURE_ISOLATION) \
	X(906, STREAM_CAPTURE_IMPLICIT) X(907, CAPTURED_EVENT) X(908, STREAM_CAPTURE_WRONG_THREAD) X(909, TIMEOUT) \
	X(910, GRAPH_EXEC_UPDATE_FAILURE) X(911, EXTERNAL_DEVICE) X(912, INVALID_CLUSTER_SIZE) \
	X(913, FUNCTION_NOT_LOADED) X(914, INVALID_RESOURCE_TYPE) X(915, INVALID_RESOURCE_CONFIGURATION) \
	X(916, KEY_ROTATION) X(917, STREAM_DETACHED) X(918, GRAPH_RECAPTURE_FAILURE) X(919, FABRIC_NOT_READY) \
	X(999, UNKNOWN)

#define RUNTIME_ERRORS(X)                                                                                    \
	X(1, InvalidValue) X(2, MemoryAllocation) X(3, InitializationError) X(4, CudartUnloading) \
	X(5, ProfilerDisabled) X(6, ProfilerNotInitialized) X(7, ProfilerAlreadyStarted) \
	X(8, ProfilerAlreadyStopped) X(9, InvalidConfiguration) X(10, VersionTranslation) X(12, InvalidPitchValue) \
	X(13, InvalidSymbol) X(16, InvalidHostPointer) X(17, InvalidDevicePointer) X(18, InvalidTexture) \
	X(19, InvalidTextureBinding) X(20, InvalidChannelDescriptor) X(21, InvalidMemcpyDirection) \
	X(22, AddressOfConstant) X(23, TextureFetchFailed) X(24, TextureNotBound) X(25, SynchronizationError) \
	X(26, InvalidFilterSetting) X(27, InvalidNormSetting) X(28, MixedDeviceExecution) X(31, NotYetImplemented) \
	X(32, MemoryValueTooLarge) X(34, StubLibrary) X(35, InsufficientDriver) X(36, CallRequiresNewerDriver) \
	X(37, InvalidSurface) X(43, DuplicateVariableName) X(44, DuplicateTextureName) X(45, DuplicateSurfaceName) \
	X(46, DevicesUnavailable) X(49, IncompatibleDriverContext) X(52, MissingConfiguration) \
	X(53, PriorLaunchFailure) X(65, LaunchMaxDepthExceeded) X(66, LaunchFileScopedTex) \
	X(67, LaunchFileScopedSurf) X(68, SyncDepthExceeded) X(69, LaunchPendingCountExceeded) \
	X(98, InvalidDeviceFunction) X(100, NoDevice) X(101, InvalidDevice) X(102, DeviceNotLicensed) \
	X(103, SoftwareValidityNotEstablished) X(127, StartupFailure) X(200, InvalidKernelImage) \
	X(201, DeviceUninitialized) X(205, MapBufferObjectFailed) X(206, UnmapBufferObjectFailed) \
	X(207, ArrayIsMapped) X(208, AlreadyMapped) X(209, NoKernelImageForDevice) X(210, AlreadyAcquired) \
	X(211, NotMapped) X(212, NotMappedAsArray) X(213, NotMappedAsPointer) X(214, ECCUncorrectable) \
	X(215, UnsupportedLimit) X(216, DeviceAlreadyInUse) X(217, PeerAccessUnsupported) X(218, InvalidPtx) \
	X(219, InvalidGraphicsContext) X(220, NvlinkUncorrectable) X(221, JitCompilerNotFound) \
	X(222, UnsupportedPtxVersion) X(223, JitCompilationDisabled) X(224, UnsupportedExecAffinity) \
	X(225, UnsupportedDevSideSync) X(226, Contained) X(227, InsufficientLoaderVersion) X(300, InvalidSource) \
	X(301, FileNotFound) X(302, SharedObjectSymbolNotFound) X(303, SharedObjectInitFailed) \
	X(304, OperatingSystem) X(400, InvalidResourceHandle) X(401, IllegalState) X(402, LossyQuery) \
	X(500, SymbolNotFound) X(600, NotReady) X(700, IllegalAddress) X(701, LaunchOutOfResources) \
	X(702, LaunchTimeout) X(703, LaunchIncompatibleTexturing) X(704, PeerAccessAlreadyEnabled) \
	X(705, PeerAccessNotEnabled) X(708, SetOnActiveProcess) X(709, ContextIsDestroyed) X(710, Assert) \
	X(711, TooManyPeers) X(712, HostMemoryAlreadyRegistered) X(713, HostMemoryNotRegistered) \
	X(714, HardwareStackError) X(715, IllegalInstruction) X(716, MisalignedAddress) \
	X(717, InvalidAddressSpace) X(718, InvalidPc) X(719, LaunchFailure) X(720, CooperativeLaunchTooLarge) \
	X(721, TensorMemoryLeak) X(800, NotPermitted) X(801, NotSupported) X(802, SystemNotReady) \
	X(803, SystemDriverMismatch) X(804, CompatNotSupportedOnDevice) X(805, MpsConnectionFailed) \
	X(806, MpsRpcFailure) X(807, MpsServerNotReady) X(808, MpsMaxClientsReached) \
	X(809, MpsMaxConnectionsReached) X(810, MpsClientTerminated) X(811, CdpNotSupported) \
	X(812, CdpVersionMismatch) X(900, StreamCaptureUnsupported) X(901, StreamCaptureInvalidated) \
	X(902, StreamCaptureMerge) X(903, StreamCaptureUnmatched) X(904, StreamCaptureUnjoined) \
	X(905, StreamCaptureIsolation) X(906, StreamCaptureImplicit) X(907, CapturedEvent) \
	X(908, StreamCaptureWrongThread) X(909, Timeout) X(910, GraphExecUpdateFailure) X(911, ExternalDevice) \
	X(912, InvalidClusterSize) X(913, FunctionNotLoaded) X(914, InvalidResourceType) \
	X(915, InvalidResourceConfiguration) X(917, StreamDetached) X(918, GraphRecaptureFailure) \
	X(919, FabricNotReady) X(999, Unknown) X(10000, ApiFailureBase)

/* What NVIDIA's driver and runtime print of the codes that programs meet most, and match. */
#define DESCRIPTIONS(X)                                                                                      \
	X(1, "invalid argument")                                                                             \
	X(2, "out of memory")                                                                                \
	X(3, "initialization error")                                                                         \
	X(100, "no CUDA-capable device is detected")                                                         \
	X(101, "invalid device ordinal")                                                                     \
	X(201, "invalid device context")                                                                     \
	X(400, "invalid resource handle")                                                                    \
	X(500, "named symbol not found")                                                                     \
	X(600, "device not ready")                                                                           \
	X(700, "an illegal memory access was encountered")                                                   \
	X(704, "peer access is already enabled")                                                             \
	X(705, "peer access has not been enabled")                                                           \
	X(709, "context is destroyed")                                                                       \
	X(719, "unspecified launch failure")                                                                 \
	X(801, "operation not supported")                                                                    \
	X(900, "operation not permitted when stream is capturing")                                           \
	X(901, "operation failed due to a previous error during capture")

static inline const char *description(int code, const char *name)
{
	static __thread char words[64];
	size_t at = 0;

	switch (code) {
#define X(code, text) case code: return text;
		DESCRIPTIONS(X)
#undef X
	}
	for (; name[at] && at < sizeof(words) - 1; at++)
		words[at] = name[at] == '_' ? ' ' : (char)tolower(name[at]);
	words[at] = 0;
	return words;
}
