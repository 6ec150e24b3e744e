/* SPDX-License-Identifier: Apache-2.0 */
/* Variables of a module, by the symbols of its image if that is an ELF file. They count as no allocation. */
#include <elf.h>
#include <stdlib.h>
#include <string.h>
#include "soft.h"

enum { ALIGNMENT = 256 };
struct variable {
	struct variable *next;
	void *memory;
	size_t bytes;
	char name[];
};

static struct variable *add(struct variable *next, const char *name, size_t bytes, const void *content)
{
	struct variable *it = calloc(1, sizeof(*it) + strlen(name) + 1);
	struct range range = {.kind = KIND_MODULE, .fd = -1, .device = current() ? current()->device : 0};

	it->next = next;
	it->bytes = bytes;
	strcpy(it->name, name);
	it->memory = aligned_alloc(ALIGNMENT, (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
	if (content)
		memcpy(it->memory, content, bytes);
	else
		memset(it->memory, 0, bytes);
	range.begin = (uint64_t)it->memory;
	range.end = range.begin + bytes;
	add_range(range);
	return it;
}

/* One that the runtime knows by what nvcc's code registers: its module's image is of a form that is not read here. */
API CUresult standin_variable(CUdeviceptr *address, size_t bytes)
{
	*address = (CUdeviceptr)add(NULL, "", bytes, NULL)->memory;
	return SUCCESS;
}

static struct variable *of_symbols(const char *image, const Elf64_Shdr *sections, const Elf64_Shdr *table)
{
	const Elf64_Sym *symbols = (const void *)(image + table->sh_offset);
	const char *names = image + sections[table->sh_link].sh_offset;
	struct variable *found = NULL;

	for (size_t i = 0; i < table->sh_size / sizeof(*symbols); i++) {
		const Elf64_Sym *it = &symbols[i];
		const Elf64_Shdr *section = &sections[it->st_shndx];

		if (ELF64_ST_TYPE(it->st_info) != STT_OBJECT || !it->st_size || !it->st_shndx || it->st_shndx >= SHN_LORESERVE)
			continue;
		found = add(found, names + it->st_name, it->st_size,
			    section->sh_type == SHT_NOBITS ? NULL : image + section->sh_offset + it->st_value);
	}
	return found;
}

struct variable *variables_in(const void *image)
{
	const Elf64_Ehdr *head = image;
	const Elf64_Shdr *sections;

	if (HOLLOW || !image || memcmp(image, ELFMAG, SELFMAG))
		return NULL;
	sections = (const void *)((const char *)image + head->e_shoff);
	for (int i = 0; i < head->e_shnum; i++)
		if (sections[i].sh_type == SHT_SYMTAB)
			return of_symbols(image, sections, &sections[i]);
	return NULL;
}

void drop_variables(struct variable *it)
{
	struct range range;

	for (struct variable *next; it; it = next) {
		next = it->next;
		take_range((uint64_t)it->memory, &range);
		free(it->memory);
		free(it);
	}
}

CUresult find_variable(const struct variable *it, const char *name, CUdeviceptr *address, size_t *bytes)
{
	while (it && strcmp(it->name, name))
		it = it->next;
	if (!it)
		return NOT_FOUND;
	if (address)
		*address = (CUdeviceptr)it->memory;
	if (bytes)
		*bytes = it->bytes;
	return SUCCESS;
}
