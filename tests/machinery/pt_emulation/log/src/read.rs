// SPDX-License-Identifier: GPL-2.0-only
//! Reads a log, record by record.

use std::fmt;
use std::io::{self, Read};

use crate::{tag, Header, Record, HEADER_WORDS, MAGIC, TAG, VERSION};

/// A block is at most a page, and QEMU makes none longer.
const MAX_BLOCK_BYTES: u32 = 8192;

#[derive(Debug)]
pub enum Error {
    Io(io::Error),
    NotALog,
    Version(u32),
    Tag(u32),
    BlockTooLong(u32),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Io(error) => write!(f, "reading the log: {error}"),
            Error::NotALog => write!(f, "not a log of the observer"),
            Error::Version(version) => write!(f, "log version {version} is unknown (this reads {VERSION})"),
            Error::Tag(tag) => write!(f, "damaged log: unknown tag {tag:#x}"),
            Error::BlockTooLong(n) => write!(f, "damaged log: a block of {n} bytes"),
        }
    }
}

impl std::error::Error for Error {}

/// Records of a log, in order. Give it a buffered stream.
pub struct Reader<R: Read> {
    input: R,
    header: Header,
    cut: bool,
}

impl<R: Read> Reader<R> {
    pub fn new(mut input: R) -> Result<Self, Error> {
        let mut words = [0; HEADER_WORDS];
        for word in &mut words {
            let mut bytes = [0; 4];
            input.read_exact(&mut bytes).map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => Error::NotALog,
                _ => Error::Io(error),
            })?;
            *word = u32::from_le_bytes(bytes);
        }
        if words[..2] != MAGIC {
            return Err(Error::NotALog);
        }
        if words[2] != VERSION {
            return Err(Error::Version(words[2]));
        }
        let [tsc_khz, begun_ms] = [join(words[4], words[5]), join(words[6], words[7])];
        let header = Header { n_cpus: words[3], tsc_khz, begun_ms };
        Ok(Self { input, header, cut: false })
    }

    pub fn header(&self) -> Header {
        self.header
    }

    /// Whether the log ended in the middle of a record (known after the last one was read).
    pub fn was_cut(&self) -> bool {
        self.cut
    }

    /// Reads `n` bytes. None: the log ends here; it was cut, unless this is the start of a record.
    fn bytes(&mut self, buffer: &mut [u8], start: bool) -> Result<Option<()>, Error> {
        let mut n = 0;
        while n < buffer.len() {
            match self.input.read(&mut buffer[n..]) {
                Ok(0) => {
                    self.cut = !start || n != 0;
                    return Ok(None);
                }
                Ok(more) => n += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::Io(error)),
            }
        }
        Ok(Some(()))
    }

    fn words<const N: usize>(&mut self) -> Result<Option<[u32; N]>, Error> {
        let mut words = [0; N];
        for word in &mut words {
            let mut bytes = [0; 4];
            if self.bytes(&mut bytes, false)?.is_none() {
                return Ok(None);
            }
            *word = u32::from_le_bytes(bytes);
        }
        Ok(Some(words))
    }

    fn values<const N: usize>(&mut self) -> Result<Option<[u64; N]>, Error> {
        let mut values = [0; N];
        for value in &mut values {
            match self.words()? {
                Some([low, high]) => *value = join(low, high),
                None => return Ok(None),
            }
        }
        Ok(Some(values))
    }

    fn define(&mut self) -> Result<Option<Record>, Error> {
        let Some([id, low, high, n_insns, n_bytes]) = self.words()? else { return Ok(None) };
        if n_bytes > MAX_BLOCK_BYTES {
            return Err(Error::BlockTooLong(n_bytes));
        }
        let mut bytes = vec![0; n_bytes.next_multiple_of(4) as usize];
        let read = self.bytes(&mut bytes, false)?;
        bytes.truncate(n_bytes as usize);
        Ok(read.map(|()| Record::Define { id, ip: join(low, high), n_insns, bytes }))
    }

    fn entry(&mut self) -> Result<Option<Record>, Error> {
        let Some([vector]) = self.words()? else { return Ok(None) };
        let Some([rsp]) = self.values()? else { return Ok(None) };
        let stack = self.values()?;
        Ok(stack.map(|stack| Record::Entry { vector: vector as u8, rsp, stack }))
    }

    fn mark(&mut self) -> Result<Option<Record>, Error> {
        let Some([id, at]) = self.words()? else { return Ok(None) };
        let values = self.values()?;
        Ok(values.map(|[rdi, rsi]| Record::Mark { id: id as u16, at, rdi, rsi }))
    }

    fn record(&mut self) -> Result<Option<Record>, Error> {
        let mut bytes = [0; 4];
        if self.bytes(&mut bytes, true)?.is_none() {
            return Ok(None);
        }
        let word = u32::from_le_bytes(bytes);
        if word < TAG {
            return Ok(Some(Record::Block { id: word }));
        }
        Ok(match word {
            tag::DEFINE => self.define()?,
            tag::ALIAS => self.values()?.map(|[ip]| Record::Alias { ip }),
            tag::PARTIAL => self.words()?.map(|[n_started]| Record::Partial { n_started }),
            tag::ENTRY => self.entry()?,
            tag::CR3 => self.values()?.map(|[value]| Record::Cr3 { value }),
            tag::TSC => self.values()?.map(|[value]| Record::Tsc { value }),
            tag::CPU => self.words()?.map(|[index]| Record::Cpu { index }),
            tag::HALT => Some(Record::Halt),
            tag::WAKE => Some(Record::Wake),
            tag::MARK => self.mark()?,
            tag::WATCH => self.values()?.map(|[ip, rdi, rsi, rdx]| Record::Watch { ip, rdi, rsi, rdx }),
            tag::START => self.values()?.map(|[cr3]| Record::Start { cr3 }),
            tag::STOP => Some(Record::Stop),
            other => return Err(Error::Tag(other)),
        })
    }
}

impl<R: Read> Iterator for Reader<R> {
    type Item = Result<Record, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.record().transpose()
    }
}

fn join(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}
