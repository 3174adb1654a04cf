// SPDX-License-Identifier: GPL-2.0-only
//! The output of pt-encode: aux.json and a file of packets per CPU.

use std::fs;
use std::path::Path;

use anyhow::{ensure, Context, Result};
use serde::Deserialize;

#[derive(Deserialize)]
pub struct Options {
    pub tsc_ctc_n: u32,
    pub tsc_ctc_d: u32,
    pub snapshot: Option<usize>,
    pub user_only: bool,
    pub kernel_only: bool,
}

#[derive(Clone, Deserialize)]
pub struct Chunk {
    pub offset: usize,
    pub size: usize,
    pub tsc: u64,
    pub flags: u64,
}

#[derive(Deserialize)]
pub struct Cpu {
    pub cpu: u32,
    file: String,
    pub chunks: Vec<Chunk>,
    #[serde(skip)]
    pub bytes: Vec<u8>,
}

#[derive(Deserialize)]
pub struct Aux {
    version: u32,
    pub config: u64,
    pub options: Options,
    pub cpus: Vec<Cpu>,
}

impl Aux {
    pub fn load(directory: &Path) -> Result<Self> {
        let path = directory.join("aux.json");
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let mut aux: Aux = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
        ensure!(aux.version == 1, "{}: version {} is unknown", path.display(), aux.version);
        for cpu in &mut aux.cpus {
            ensure!(!cpu.file.contains('/'), "{}: {:?} is no file name", path.display(), cpu.file);
            let path = directory.join(&cpu.file);
            cpu.bytes = fs::read(&path).with_context(|| path.display().to_string())?;
            let end = cpu.chunks.last().map_or(0, |chunk| chunk.offset + chunk.size);
            ensure!(end <= cpu.bytes.len(), "{}: shorter than aux.json says", path.display());
        }
        Ok(aux)
    }
}
