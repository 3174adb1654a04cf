// SPDX-License-Identifier: GPL-2.0-only
//! Which part of a recording is decoded, and how.

use crate::windows::Windows;

pub struct Options {
    pub windows: Windows,
    /// Bytes of PT in a slice.
    pub slice: usize,
    /// Edges before the windows are emitted too, so that calls around the begin of a window are known.
    pub with_context: bool,
    pub progress: bool,
    /// Do only the work that libipt needs, without edges. For benchmarks.
    pub bare: bool,
}

pub const SLICE: usize = 256 << 10;
