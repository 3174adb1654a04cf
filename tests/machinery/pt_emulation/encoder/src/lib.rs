// SPDX-License-Identifier: GPL-2.0-only
//! Encodes what a CPU did as Intel PT packets.
//!
//! Pure: input are events and options, output are bytes. It follows the Intel SDM (volume 3, chapter "Intel Processor
//! Trace"). Where a processor may choose (how far a packet is delayed, when waiting branches are sent), it sends at
//! once.

pub mod encoder;
pub mod options;
pub mod packet;
mod returns;
mod stream;

pub use encoder::{encode, Chunk, Encoded, Injected};
pub use options::Options;
pub use packet::{Buffer, Packet};
pub use stream::SyncPoint;
