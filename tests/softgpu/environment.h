/* SPDX-License-Identifier: Apache-2.0 */
/* Variables that each call heeds, also those that the program sets while it runs. A launch may not take 100 ns, as a walk
 * through the environment for each of them does. */
#pragma once

enum { FAIL, SLOW, KERNEL_NS, VARIABLES };

struct variables {
	const char *set[VARIABLES]; /* NULL: not set */
};
const struct variables *variables(void);
