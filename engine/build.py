"""Compile the native kernels: `python -m engine.build`, at installation.

Owns the compiler's command line. Builds one library for each instruction set this processor has,
next to the sources; a build that exists is not repeated. Without a compiler it says so and succeeds
all the same: everything works without, only slower.
"""

import shutil
import subprocess

import click

from engine.kernels.native_library import SOURCES, Variant, fitting_variants, library_path

_FLAGS = ("-std=c++17", "-O3", "-fno-math-errno", "-ffp-contract=fast", "-shared", "-fPIC")
_COMPILERS = ("g++", "clang++", "c++")


@click.command()
@click.option("--all", "builds_all", is_flag=True, help="Slower instruction sets too, for tests.")
def main(*, builds_all: bool) -> None:
    """Compile the native kernels for this processor."""
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        click.echo("no C++ compiler: the engine will run on plain PyTorch, several times slower")
        return
    variants = fitting_variants() if builds_all else fitting_variants()[:1]
    try:
        for variant in variants:
            compile_variant(compiler, variant)
    except subprocess.CalledProcessError as error:
        click.echo(f"{compiler} failed ({error.returncode}): the engine will run on plain PyTorch")


def compile_variant(compiler: str, variant: Variant) -> None:
    """Compile one library; a half-written one is never left under its name, nor a stale one."""
    target = library_path(variant)
    if target.exists():
        click.echo(f"native kernels for {variant.name} are there")
        return
    click.echo(f"compiling native kernels for {variant.name}, about 15 s ...")
    partial = target.with_suffix(".partial")
    source = SOURCES / "promptmill.cpp"
    command = [compiler, *_FLAGS, *variant.flags, "-Wno-psabi", "-pthread", str(source)]
    subprocess.run([*command, "-o", str(partial)], check=True)
    partial.replace(target)
    for stale in SOURCES.glob(f"promptmill-{variant.name}-*.so"):
        if stale != target:
            stale.unlink()


if __name__ == "__main__":
    main()
