// SPDX-License-Identifier: GPL-2.0-only
//! The code that runs: a program and a kernel, each with everything that a decoder has to follow.

/// The begin of the kernel's code.
pub const KERNEL: u64 = 0xffff_ffff_8100_0000;
pub const USER: u64 = 0x40_0000;
pub const SIZE: usize = 4096;

/// Offset of the code in the image of the kernel or program, its name, and its bytes.
type Function = (u64, &'static str, &'static [u8]);

pub const KERNEL_CODE: &[Function] = &[
    // call 0x100; je +3; swapgs; sysretq
    (0x000, "entry_SYSCALL_64", &[0xe8, 0xfb, 0, 0, 0, 0x74, 3, 0x0f, 0x01, 0xf8, 0x48, 0x0f, 0x07]),
    // call 0x140; iretq
    (0x040, "asm_sysvec_apic_timer_interrupt", &[0xe8, 0xfb, 0, 0, 0, 0x48, 0xcf]),
    // call 0x1c0; iretq
    (0x060, "asm_exc_page_fault", &[0xe8, 0x5b, 1, 0, 0, 0x48, 0xcf]),
    // je +2; call *%rax; jne +5; jmp 0x180; ret
    (0x100, "do_syscall_64", &[0x74, 2, 0xff, 0xd0, 0x75, 5, 0xe9, 0x75, 0, 0, 0, 0xc3]),
    // dec %eax; jne -4; ret
    (0x140, "irq_loop", &[0xff, 0xc8, 0x75, 0xfc, 0xc3]),
    (0x180, "__switch_to", &[0xc3]),
    // call +7; pause; lfence; jmp -7; mov %rax,(%rsp); ret
    (
        0x1c0,
        "__x86_indirect_thunk_rax",
        &[0xe8, 7, 0, 0, 0, 0xf3, 0x90, 0x0f, 0xae, 0xe8, 0xeb, 0xf9, 0x48, 0x89, 0x04, 0x24, 0xc3],
    ),
    // jmp itself
    (0x200, "panic", &[0xeb, 0xfe]),
    // hlt; jmp -3
    (0x220, "default_idle", &[0xf4, 0xeb, 0xfd]),
    (0x240, "__x86_return_thunk", &[0xc3]),
    // jmp *%rax
    (0x250, "dispatch", &[0xff, 0xe0]),
    // int 0x80; mov %rax,%cr3; vmlaunch; ptwrite %eax; mwait; ret
    (
        0x260,
        "rare",
        &[0xcd, 0x80, 0x0f, 0x22, 0xd8, 0x0f, 0x01, 0xc2, 0xf3, 0x0f, 0xae, 0xe0, 0x0f, 0x01, 0xc9, 0xc3],
    ),
    // call 0x2a0 (to the next instruction); pop %rax; call 0x280 (itself)
    (0x280, "recursion", &[0xe8, 0, 0, 0, 0, 0x58, 0x74, 5, 0xe8, 0xf3, 0xff, 0xff, 0xff, 0xc3]),
    // jmp 0xff0, which runs on to the end of the image
    (0x2c0, "last", &[0xe9, 0x2b, 0x0d, 0, 0]),
];

pub const USER_CODE: &[Function] = &[
    // call 0x40; syscall; jne -9; ret
    (0x000, "_start", &[0xe8, 0x3b, 0, 0, 0, 0x0f, 0x05, 0x75, 0xf7, 0xc3]),
    // jne +2; call *%rax; ret
    (0x040, "main", &[0x75, 2, 0xff, 0xd0, 0xc3]),
    // call 0x40; jmp 0x40
    (0x080, "tail", &[0xe8, 0xbb, 0xff, 0xff, 0xff, 0xeb, 0xb9]),
    // mov $15,%eax; syscall
    (0x0c0, "restorer", &[0xb8, 15, 0, 0, 0, 0x0f, 0x05]),
    // an instruction that the image cuts: a call
    (0xffd, "cut", &[0xe8, 0, 0]),
];

/// The image of `functions`, with NOPs between them.
pub fn image(functions: &[Function]) -> Vec<u8> {
    let mut bytes = vec![0x90; SIZE];
    for (at, _, code) in functions {
        bytes[*at as usize..*at as usize + code.len()].copy_from_slice(code);
    }
    bytes
}

/// The image as an ELF file.
pub fn elf(address: u64, functions: &[Function]) -> Vec<u8> {
    let symbols: Vec<(&str, u64)> = functions.iter().map(|&(at, name, _)| (name, at)).collect();
    crate::elf::program(address, &image(functions), &symbols)
}
