/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Marks at which nsight-record (or perf, bpftrace, gdb) can stamp a program: USDT probes, with
 * nothing else to include or link. C and C++, 64-bit Linux; elsewhere they are nothing.
 *
 *	#include <nsight/interval.h>
 *
 *	NSIGHT_BEGIN(order);
 *	match(&order);
 *	NSIGHT_END(order);
 *
 *	nsight-record --interval usdt:./server:nsight:order_begin..order_end
 *
 * A begin and an end belong together by their thread. Intervals of one name do not nest, those of
 * different names may. Where they overlap in a thread, or another thread ends them, a key tells
 *which belong together: a number or a pointer, in all marks of one name.
 *
 *	NSIGHT_BEGIN_KEY(order, order->id);	in the thread that makes it
 *	NSIGHT_MARK_KEY(order_queued, order->id);	when it is handed to another one
 *	NSIGHT_END_KEY(order, order->id);	there
 *
 *	nsight-record --interval usdt:./server:nsight:order_begin..order_queued..order_end,arg0
 *
 * As long as nobody listens a mark is a load and a branch that is not taken:
 * who listens has the kernel raise the mark's semaphore.
 *
 * The note that describes a probe is the one that debuggers and tracers read (section
 * .note.stapsdt, type 3): addresses of the probe, of a byte that tells how far the program was
 * moved, and of the semaphore; then provider, name and arguments, each with a 0 at its end.
 */
#ifndef NSIGHT_INTERVAL_H
#define NSIGHT_INTERVAL_H

#ifndef NSIGHT_PROVIDER
#define NSIGHT_PROVIDER nsight
#endif

#define NSIGHT_BEGIN(name) NSIGHT_MARK_(NSIGHT_PROVIDER, name##_begin)
#define NSIGHT_END(name)   NSIGHT_MARK_(NSIGHT_PROVIDER, name##_end)
/* A mark of another name, such as a hand-over in the middle. */
#define NSIGHT_MARK(name) NSIGHT_MARK_(NSIGHT_PROVIDER, name)

#define NSIGHT_BEGIN_KEY(name, key) NSIGHT_MARK_KEY_(NSIGHT_PROVIDER, name##_begin, key)
#define NSIGHT_END_KEY(name, key)   NSIGHT_MARK_KEY_(NSIGHT_PROVIDER, name##_end, key)
#define NSIGHT_MARK_KEY(name, key)  NSIGHT_MARK_KEY_(NSIGHT_PROVIDER, name, key)

#define NSIGHT_MARK_(provider, name) NSIGHT_MARK__(provider, name, "", )
#define NSIGHT_MARK_KEY_(provider, name, key)                                                      \
	NSIGHT_MARK__(provider, name, NSIGHT_ARG_, NSIGHT_IN_(key))

#if defined(__linux__) && defined(__LP64__) && defined(__ELF__) && !defined(NSIGHT_NO_MARKS)

/* clang-format off */
#define NSIGHT_SEMAPHORE_(provider, name) "nsight_semaphore_" #provider "_" #name

/* The key is an operand as the assembler writes it: 8 bytes in a register or in memory. */
#if defined(__x86_64__)
#define NSIGHT_ARG_ "8@%0"
#elif defined(__aarch64__)
#define NSIGHT_ARG_ "8@%x0"
#else
#define NSIGHT_ARG_ "8@%0"
#endif
#define NSIGHT_IN_(key) "r"((unsigned long)(key))

/* Marks of one name share a semaphore: within a file by .ifndef, between files as it is weak. */
#define NSIGHT_MARK__(provider, name, argument, input)                                             \
	do {                                                                                       \
		extern unsigned short nsight_semaphore_##provider##_##name                         \
			__asm__(NSIGHT_SEMAPHORE_(provider, name))                                 \
			__attribute__((visibility("hidden")));                                     \
		__asm__ __volatile__(                                                              \
			".ifndef " NSIGHT_SEMAPHORE_(provider, name) "\n"                          \
			".pushsection .probes, \"aw\", \"progbits\"\n"                             \
			".weak " NSIGHT_SEMAPHORE_(provider, name) "\n"                            \
			".hidden " NSIGHT_SEMAPHORE_(provider, name) "\n"                          \
			".balign 2\n"                                                              \
			NSIGHT_SEMAPHORE_(provider, name) ": .2byte 0\n"                           \
			".popsection\n"                                                            \
			".endif\n");                                                               \
		if (__builtin_expect(*(volatile unsigned short *)                                  \
					     &nsight_semaphore_##provider##_##name, 0))            \
			__asm__ __volatile__(                                                      \
				"990: nop\n"                                                       \
				".pushsection .note.stapsdt, \"?\", \"note\"\n"                    \
				".balign 4\n"                                                      \
				".4byte 992f - 991f, 994f - 993f, 3\n"                             \
				"991: .asciz \"stapsdt\"\n"                                        \
				"992: .balign 4\n"                                                 \
				"993: .8byte 990b, _.stapsdt.base, "                               \
				NSIGHT_SEMAPHORE_(provider, name) "\n"                             \
				".asciz \"" #provider "\", \"" #name "\", \"" argument "\"\n"        \
				"994: .balign 4\n"                                                 \
				".popsection\n"                                                    \
				".ifndef _.stapsdt.base\n"                                         \
				".pushsection .stapsdt.base, \"aG\", \"progbits\", "               \
				".stapsdt.base, comdat\n"                                          \
				".weak _.stapsdt.base\n"                                           \
				".hidden _.stapsdt.base\n"                                         \
				"_.stapsdt.base: .space 1\n"                                       \
				".size _.stapsdt.base, 1\n"                                        \
				".popsection\n"                                                    \
				".endif\n" : : input : "memory");                                  \
	} while (0)
/* clang-format on */

#else
#define NSIGHT_MARK__(provider, name, argument, input) ((void)0)
#endif

#endif
