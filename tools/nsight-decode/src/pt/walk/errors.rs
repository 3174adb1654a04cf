// SPDX-License-Identifier: GPL-2.0-only
//! Why decoding failed, as perf's error codes.

use crate::error::{Error, Result};
use crate::libipt::error;
use crate::pt::decoder::Status;

/// How decoding of an interval ended.
pub enum End {
    Done,
    Failed(i32),
}

impl End {
    /// Ended with an error of libipt. A lack of memory stops the run: later parts of the trace would only seem to be
    /// damaged.
    pub fn of(status: Status) -> Result<Self> {
        match -status {
            error::NOMEM => Err(Error::memory("libipt: no memory")),
            code => Ok(Self::Failed(code)),
        }
    }
}

/// Not a libipt code: an endless loop.
pub const NEVER_ENDING: i32 = 1000;
/// Not a libipt code either: a virtual machine was entered, whose code is not available.
pub const GUEST: i32 = 1001;

/// A compressed return whose call is not known.
pub fn is_compressed_return(code: i32) -> bool {
    matches!(code, error::RETSTACK_EMPTY | error::BAD_RETCOMP)
}

/// perf's code for libipt's error: `INTEL_PT_ERR_*` of its intel-pt-decoder.h.
pub fn perf_error(code: i32) -> u64 {
    match code {
        error::BAD_OPC | error::BAD_PACKET => 3,
        error::NOMAP | error::BAD_INSN | error::BAD_IMAGE | error::BAD_FILE => 5,
        error::BAD_QUERY
        | error::BAD_CONTEXT
        | error::RETSTACK_EMPTY
        | error::BAD_RETCOMP
        | error::BAD_STATUS_UPDATE
        | error::NO_ENABLE => 6,
        NEVER_ENDING => 10,
        // not an error: reported as `Code::Guest`
        GUEST => 5,
        _ => 9,
    }
}
