// SPDX-License-Identifier: GPL-2.0-only
//! Intel PT packets and a real recording's side-band as one perf.data that stock perf decodes.
//!
//! The side-band is recorded in the guest by perf itself, with dummy events; one of them takes
//! intel_pt's place. Its records stay as they are; what perf writes for intel_pt is added.

pub mod aux;
pub mod file;
pub mod layout;
pub mod merge;
pub mod side_band;
pub mod synthetic;

pub use aux::Aux;
pub use file::File;
pub use merge::{merge, Buffers, Merged};
