// SPDX-License-Identifier: GPL-2.0-only
//! pt-merge: merges Intel PT packets and a side-band into one perf.data file.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{bail, ensure, Context, Result};
use clap::Parser;
use pt_merger::synthetic::{side_band, Code};
use pt_merger::{merge, Aux, Buffers, File};

/// Join what pt-encode wrote with the side-band of a real `perf record -e dummy:u -e dummy:k`.
#[derive(Parser)]
#[command(name = "pt-merge", version)]
struct Args {
    /// Directory with aux.json
    #[arg(long)]
    aux: PathBuf,
    /// perf.data of the side-band: a file, or the directory that --kcore makes
    #[arg(long, required_unless_present = "synthetic")]
    side_band: Option<PathBuf>,
    /// The guest's vDSO; its mappings get this file's name
    #[arg(long)]
    vdso: Option<PathBuf>,
    /// The name instead, for a file that will be moved
    #[arg(long, requires = "vdso")]
    vdso_name: Option<String>,
    /// Make a side-band: one process, with the code of --code
    #[arg(long, conflicts_with_all = ["side_band", "vdso"])]
    synthetic: bool,
    /// Code of the made process: ADDRESS:FILE, the address in hex
    #[arg(long, requires = "synthetic", value_parser = code)]
    code: Vec<(u64, PathBuf)>,
    /// A thread's packets: TID:DIRECTORY with its aux.json; may be repeated. The result is as of
    /// perf record --per-thread, and --aux tells the options alone
    #[arg(long, value_parser = thread, conflicts_with = "synthetic")]
    thread: Vec<(u32, PathBuf)>,
    #[arg(long)]
    out: PathBuf,
}

fn thread(text: &str) -> Result<(u32, PathBuf), String> {
    let (tid, directory) = text.split_once(':').ok_or("TID:DIRECTORY")?;
    Ok((tid.parse().map_err(|_| "TID:DIRECTORY")?, directory.into()))
}

fn code(text: &str) -> Result<(u64, PathBuf), String> {
    let (address, file) = text.split_once(':').ok_or("ADDRESS:FILE")?;
    let address = u64::from_str_radix(address.trim_start_matches("0x"), 16).map_err(|e| e.to_string())?;
    Ok((address, file.into()))
}

fn absolute(path: &Path) -> Result<String> {
    let path = fs::canonicalize(path).with_context(|| path.display().to_string())?;
    path.into_os_string().into_string().map_err(|p| anyhow::anyhow!("{p:?}: its name is not UTF-8"))
}

fn made(args: &Args, aux: &Aux) -> Result<File> {
    let mut codes = Vec::new();
    for (address, path) in &args.code {
        let size = fs::metadata(path).with_context(|| path.display().to_string())?.len();
        codes.push(Code { address: *address, size: size.next_multiple_of(4096), file: absolute(path)? });
    }
    let n_cpus = aux.cpus.iter().map(|cpu| cpu.cpu + 1).max().unwrap_or(1);
    Ok(side_band(n_cpus, &codes))
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| to.display().to_string())?;
    for entry in fs::read_dir(from).with_context(|| from.display().to_string())? {
        let from = entry?.path();
        let Some(name) = from.file_name() else { continue };
        fs::copy(&from, to.join(name)).with_context(|| from.display().to_string())?;
    }
    Ok(())
}

fn run(args: Args) -> Result<()> {
    let aux = Aux::load(&args.aux)?;
    ensure!(!args.out.exists(), "{}: exists; give another name or remove it", args.out.display());
    let vdso = match (&args.vdso_name, &args.vdso) {
        (Some(name), _) => Some(name.clone()),
        (None, Some(path)) => Some(absolute(path)?),
        (None, None) => None,
    };
    let Some(side_band) = &args.side_band else {
        let merged = merge(made(&args, &aux)?, &aux, Buffers::Cpus(&aux), None)?;
        let bytes = merged.file.write(&merged.index);
        return fs::write(&args.out, bytes).with_context(|| args.out.display().to_string());
    };
    let name = side_band.display().to_string();
    let is_directory = side_band.is_dir();
    let data = if is_directory { side_band.join("data") } else { side_band.clone() };
    let bytes = fs::read(&data).with_context(|| data.display().to_string())?;
    let file = File::parse(&bytes).with_context(|| name.clone())?;
    let mut threads = Vec::new();
    for (tid, directory) in &args.thread {
        threads.push((*tid, Aux::load(directory)?));
    }
    let buffers = if threads.is_empty() { Buffers::Cpus(&aux) } else { Buffers::Threads(&threads) };
    let merged = merge(file, &aux, buffers, vdso.as_deref()).with_context(|| name.clone())?;
    let bytes = merged.file.write(&merged.index);
    if !is_directory {
        return fs::write(&args.out, bytes).with_context(|| args.out.display().to_string());
    }
    let kcore = side_band.join("kcore_dir");
    if !kcore.is_dir() {
        bail!("{name}: has no kcore_dir; record with --kcore");
    }
    copy(&kcore, &args.out.join("kcore_dir"))?;
    let out = args.out.join("data");
    fs::write(&out, bytes).with_context(|| out.display().to_string())
}

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pt-merge: error: {error:#}");
            ExitCode::from(2)
        }
    }
}
