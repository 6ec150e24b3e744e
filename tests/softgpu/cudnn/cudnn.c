/* SPDX-License-Identifier: Apache-2.0 */
/* The handle of cuDNN that XLA wants before it compiles anything, and nothing that can be done with it: NVIDIA's own has
 * CUDA's runtime linked in, which does not run on a simulated driver. */
#include <stddef.h>

#define API __attribute__((visibility("default")))

enum { SUCCESS, BAD_PARAM = 2002 }; /* cudnn_graph.h: CUDNN_STATUS_BAD_PARAM */

static const int version[] = {9, 12, 0};

API int cudnnCreate(void **handle)
{
	static char made;

	*handle = &made;
	return SUCCESS;
}

API int cudnnDestroy(void *handle)
{
	(void)handle;
	return SUCCESS;
}

API int cudnnSetStream(void *handle, void *stream)
{
	(void)handle, (void)stream;
	return SUCCESS;
}

API size_t cudnnGetVersion(void)
{
	return version[0] * 10000 + version[1] * 100 + version[2];
}

API int cudnnGetProperty(int which, int *value)
{
	if (which < 0 || which > 2)
		return BAD_PARAM;
	*value = version[which];
	return SUCCESS;
}

API const char *cudnnGetErrorString(int status)
{
	return status ? "an error of the soft cuDNN" : "CUDNN_STATUS_SUCCESS";
}
