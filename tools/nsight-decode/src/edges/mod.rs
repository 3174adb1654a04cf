// SPDX-License-Identifier: GPL-2.0-only
//! Edges: taken branches that change the call stack. All routes from PT to calls share this form.

mod file;
mod stream;

pub use file::{read, Reader, Writer};
pub use stream::{power, Code, Edge, Event, Kind, Sink, ThreadName, COMPRESSED_RETURN};
