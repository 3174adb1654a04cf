// SPDX-License-Identifier: GPL-2.0-only
//! Decodes a recording to one sequence of edges: slices in parallel, joined in order, merged by time.

mod merge;
mod options;
mod plan;
mod progress;
mod run;
mod side;
mod tracks;

pub use merge::Counts;
pub use options::{Options, SLICE};
pub use plan::Plan;
pub use run::run;
