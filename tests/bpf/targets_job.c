/* A process that takes commands on its standard input, one a line, and answers each with a line. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* TARGET is the function to call, from a library or built in. */
#define NAME_(name) #name
#define NAME(name) NAME_(name)

static int (*call)(int);

#ifdef BUILT_IN
__attribute__((noinline)) static int TARGET(int a)
{
	__asm__ volatile("" : "+r"(a));
	return a + 1;
}
#endif

static void *idle(void *unused)
{
	pause();
	return unused;
}

static void run(char *command, char *argument, char **arguments)
{
	if (!strcmp(command, "open")) {
		void *library = dlopen(argument, RTLD_NOW);
		call = library ? (int (*)(int))dlsym(library, NAME(TARGET)) : NULL;
		printf("%s\n", call ? "opened" : dlerror());
	} else if (!strcmp(command, "call")) {
		for (int i = atoi(argument); i; i--)
			call(i);
		puts("called");
	} else if (!strcmp(command, "fork")) {
		int child = fork();
		if (!child) {
			for (int i = atoi(argument); i; i--)
				call(i);
			pause();
		}
		printf("%d\n", child);
	} else if (!strcmp(command, "exec")) {
		execv(arguments[0], arguments);
	} else if (!strcmp(command, "leave")) { /* the leader ends, another thread stays */
		pthread_t thread;
		pthread_create(&thread, NULL, idle, NULL);
		puts("left");
		fflush(stdout);
		pthread_exit(NULL);
	}
	fflush(stdout);
}

int main(int count, char **arguments)
{
	static char line[4096];
	(void)count;
#ifdef BUILT_IN
	call = TARGET;
#endif
	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		line[strcspn(line, "\n")] = 0;
		char *argument = strchr(line, ' ');
		if (argument)
			*argument++ = 0;
		run(line, argument, arguments);
	}
	return 0;
}
