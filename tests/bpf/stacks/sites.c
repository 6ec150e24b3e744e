/* A module for any CPython from 3.10 on (its stable ABI) in which 23 functions allocate GPU memory, each in one place.
 * -DPLAIN makes a library of the same functions without Python; -DSTOPS has each wait for a line of standard input,
 * when it has allocated and printed that. */
#ifndef PLAIN
#define Py_LIMITED_API 0x030a0000
#include <Python.h>
#endif
#include <stddef.h>
#ifdef STOPS
#include <unistd.h>

__attribute__((noinline)) static void stop(void)
{
	char line = 0;

	while (write(1, "stopped\n", 8) == 8 && read(0, &line, 1) == 1 && line != '\n')
		;
}
#else
static void stop(void)
{
}
#endif

extern int cuMemAlloc_v2(unsigned long long *address, size_t bytes);
extern int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
			  unsigned shared, void *stream, void **parameters, void **extra);

volatile int calls;

/* Neither a tail call nor the same code as another one. */
#define SITE(n)                                                                                              \
	__attribute__((noinline)) int site_##n(unsigned long long *address, size_t bytes)                    \
	{                                                                                                    \
		char room[64 + 16 * n];                                                                      \
		int result;                                                                                  \
		room[calls % 64] = 0;                                                                        \
		result = cuMemAlloc_v2(address, bytes + room[calls % 64]);                                   \
		stop();                                                                                      \
		calls += 1 + n;                                                                              \
		return result;                                                                               \
	}
#define EACH(X)                                                                                              \
	X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15) X(16) X(17)    \
	    X(18) X(19) X(20) X(21) X(22)
EACH(SITE)
#define NAME(n) site_##n,
static int (*const sites[])(unsigned long long *, size_t) = {EACH(NAME)};

int allocate_at(unsigned site, unsigned long long *address, size_t bytes)
{
	int result = sites[site % 23](address, bytes);

	calls++;
	return result;
}

#ifndef PLAIN
/* Of an array of pages that nobody has written to; `calls` keeps the compiler from leaving it out. */
__attribute__((noinline)) int in_front_of_pages(unsigned long long *address, size_t bytes)
{
	volatile char pages[5 * 4096];

	if (calls < 0)
		pages[-calls % sizeof(pages)] = 0;
	return allocate_at(0, address, bytes);
}

static PyObject *allocate_deeply(PyObject *self, PyObject *bytes)
{
	unsigned long long address = 0;

	(void)self;
	if (in_front_of_pages(&address, PyLong_AsSsize_t(bytes)))
		return PyErr_Format(PyExc_MemoryError, "no memory");
	return PyLong_FromUnsignedLongLong(address);
}

static PyObject *allocate(PyObject *self, PyObject *arguments)
{
	unsigned long long address = 0;
	unsigned site;
	Py_ssize_t bytes;

	(void)self;
	if (!PyArg_ParseTuple(arguments, "In", &site, &bytes))
		return NULL;
	if (allocate_at(site, &address, bytes))
		return PyErr_Format(PyExc_MemoryError, "no memory");
	return PyLong_FromUnsignedLongLong(address);
}

static PyObject *launch(PyObject *self, PyObject *arguments)
{
	int times;

	(void)self;
	if (!PyArg_ParseTuple(arguments, "i", &times))
		return NULL;
	while (times--)
		cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
	Py_RETURN_NONE;
}

static PyMethodDef methods[] = {{"allocate", allocate, METH_VARARGS, ""},
				{"allocate_deeply", allocate_deeply, METH_O, ""},
				{"launch", launch, METH_VARARGS, ""},
				{NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "sites", "", -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_sites(void)
{
	return PyModule_Create(&module);
}
#endif
