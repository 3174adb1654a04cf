// SPDX-License-Identifier: GPL-2.0-only
//! Compiles libipt from the sources in libipt/, for static linking.

use std::path::{Path, PathBuf};
use std::{env, fs};

/// Version of the sources: major, minor, patch.
const VERSION: [&str; 3] = ["2", "1", "1"];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=libipt");
    let generated = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    write_header(&generated);
    let mut build = cc::Build::new();
    build.file(write_source(Path::new("libipt/libipt"), &generated));
    build.include("libipt/include").include("libipt/libipt/internal/include");
    build.include("libipt/libipt/internal/include/posix");
    // Without FEATURE_THREADS: each thread has a separate image, sections and decoders.
    build.include(generated).define("_POSIX_C_SOURCE", "200809L").define("pt_export", "");
    // Nothing else may replace its functions, so that the compiler can inline them.
    build.flag_if_supported("-fvisibility=hidden");
    build.std("c11").warnings(false).compile("ipt");
}

/// Writes one source that includes all of libipt: its decoders call functions of other sources for each packet and each block,
/// which the compiler inlines then.
fn write_source(library: &Path, directory: &Path) -> PathBuf {
    let here = env::current_dir().expect("cargo sets it");
    // A static function of libipt has the name of one of unistd.h.
    let mut text = String::from("#include <unistd.h>\n#define truncate pt_truncate\n");
    for source in ["src", "src/posix"].iter().flat_map(|part| sources(&library.join(part))) {
        text.push_str(&format!("#include \"{}\"\n", here.join(source).display()));
    }
    let path = directory.join("ipt.c");
    fs::write(&path, text).expect("OUT_DIR can be written");
    path
}

/// Writes intel-pt.h with the version that upstream's CMake would insert.
fn write_header(directory: &Path) {
    let mut text = fs::read_to_string("libipt/libipt/include/intel-pt.h.in").expect("a header");
    for (name, number) in ["MAJOR", "MINOR", "PATCH"].iter().zip(VERSION) {
        text = text.replace(&format!("${{PT_VERSION_{name}}}"), number);
    }
    fs::write(directory.join("intel-pt.h"), text).expect("OUT_DIR can be written");
}

fn sources(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("libipt's sources").flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|ending| ending == "c"));
    files.sort();
    files
}
