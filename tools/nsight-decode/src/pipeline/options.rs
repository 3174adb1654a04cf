// SPDX-License-Identifier: GPL-2.0-only
//! What of a recording is decoded, and how.

use crate::windows::Windows;

pub struct Options {
    pub windows: Windows,
    /// Bytes of PT in a slice.
    pub slice: usize,
    /// Edges before the windows are given too, so that calls around their begin are known.
    pub with_context: bool,
    pub progress: bool,
    /// Only what libipt needs: no edges. For benchmarks.
    pub bare: bool,
}

pub const SLICE: usize = 256 << 10;
