// SPDX-License-Identifier: GPL-2.0-only
//! Merges Intel PT packets and a real recording's side-band into one perf.data file that stock perf decodes.
//!
//! perf records the side-band in the guest, with dummy events; one of them takes the place of intel_pt. The side-band's
//! records stay as they are; the records that perf writes for intel_pt are added.

pub mod aux;
pub mod file;
pub mod layout;
pub mod merge;
pub mod side_band;
pub mod synthetic;

pub use aux::Aux;
pub use file::File;
pub use merge::{merge, Buffers, Merged};
