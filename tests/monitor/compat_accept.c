// SPDX-License-Identifier: GPL-2.0-only
/*
 * A 32-bit process without a C library: accepts connections at the listening socket that is its
 * standard input, one for each argument (d: by accept4, s: by socketcall), and closes them.
 * Between, it makes system calls that have the numbers of accept and accept4 in 64-bit processes.
 */
#define NR_CLOSE      6
#define NR_EXIT	      1
#define NR_TIMES      43
#define NR_KEYCTL     288
#define NR_SOCKETCALL 102
#define NR_ACCEPT4    364
#define SYS_ACCEPT    5

static int call(int number, int a, const void *b, int c)
{
	int result;

	__asm__ volatile("int $0x80"
			 : "=a"(result)
			 : "a"(number), "b"(a), "c"(b), "d"(c), "S"(0)
			 : "memory");
	return result;
}

__attribute__((used)) static void run(int *stack)
{
	char **argv = (char **)(stack + 1);

	for (int i = 1; i < *stack; i++) {
		int listener[3] = {0, 0, 0}, fd;

		if (argv[i][0] == 's')
			fd = call(NR_SOCKETCALL, SYS_ACCEPT, listener, 0);
		else
			fd = call(NR_ACCEPT4, 0, 0, 0);
		if (fd < 0)
			call(NR_EXIT, 1, 0, 0);
		call(NR_CLOSE, fd, 0, 0);
		call(NR_TIMES, 0, 0, 0);
		call(NR_KEYCTL, 0, (const void *)-3, 0);
	}
	call(NR_EXIT, 0, 0, 0);
}

__asm__(".globl _start\n_start: mov %esp, %eax\npush %eax\ncall run\n");
