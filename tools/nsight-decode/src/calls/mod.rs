// SPDX-License-Identifier: GPL-2.0-only
//! Edges to calls: a stack per thread, cut where its thread leaves the core.
//!
//! Rows nest per core. At depth 0 is the thread; below it, in the order in which they begin,
//! functions, system calls, interrupts and exceptions, and gaps.

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
