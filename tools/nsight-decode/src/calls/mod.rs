// SPDX-License-Identifier: GPL-2.0-only
//! Builds calls from edges: one stack per thread, cut where its thread leaves the core.
//!
//! Rows nest per core. Depth 0 is the thread. Below it are, in the order in which they begin, functions, system calls,
//! interrupts and exceptions, and gaps.

mod account;
mod builder;
mod columns;
mod encode;
mod file;
#[cfg(fuzzing)]
pub mod fuzz;
mod row;
mod stack;
mod table;
mod texts;

pub use account::{Account, Granularity};
pub use builder::Builder;
pub use file::build;
pub use row::{Kind, Known, Row};
