// SPDX-License-Identifier: GPL-2.0-only
//! What is missing from a recording or from the results.

mod ledger;
mod registry;

pub use ledger::{Ledger, Lost};
pub use registry::{Loss, Severity, Words};
