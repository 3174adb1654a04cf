// SPDX-License-Identifier: GPL-2.0-only
//! The code that ran, over time: of the kernel and of each process, with symbols.

mod bpf;
#[cfg(fuzzing)]
pub mod fuzz;
mod image;
mod kallsyms;
mod kernel;
mod machine;
mod object;
mod sections;
mod symbols;

pub use image::{Image, Images};
pub use kallsyms::{KERNEL, KERNEL_BEGIN};
pub use kernel::{Kernel, KernelSource};
pub use machine::Code;
pub use sections::Sections;
pub use symbols::{Found, Interner};
