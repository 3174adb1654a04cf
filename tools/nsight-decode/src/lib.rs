// SPDX-License-Identifier: GPL-2.0-only
//! Decodes the Intel PT data of a perf.data file to edges, and builds calls from edges.

pub mod calls;
pub mod code;
pub mod edges;
pub mod error;
mod files;
pub mod insn;
pub mod libipt;
pub mod losses;
mod numbered;
pub mod packets;
pub mod perfdata;
pub mod pipeline;
pub mod pt;
#[cfg(test)]
mod scratch;
pub mod spare;
pub mod tasks;
pub mod thread_pool;
pub mod windows;
