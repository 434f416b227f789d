package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"errors"
	"io/fs"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/CycloneDX/cyclonedx-gomod/pkg/generate/bin"
	"github.com/rs/zerolog"
)

// entry is a file in an archive.
type entry struct {
	name    string
	mode    fs.FileMode
	content []byte
}

// tarball returns a .tar.gz of files, in this order. They belong to root, and all are of the same time.
func tarball(files []entry, at time.Time) ([]byte, error) {
	var out bytes.Buffer
	zw, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	tw := tar.NewWriter(zw)
	for _, f := range files {
		header := tar.Header{
			Typeflag: tar.TypeReg, Name: f.name, Mode: int64(f.mode), Size: int64(len(f.content)), ModTime: at,
			Format: tar.FormatUSTAR,
		}
		if err := tw.WriteHeader(&header); err != nil {
			return nil, err
		}
		if _, err := tw.Write(f.content); err != nil {
			return nil, err
		}
	}
	err = errors.Join(tw.Close(), zw.Close())
	return out.Bytes(), err
}

// zipball returns a .zip of files, as tarball does.
func zipball(files []entry, at time.Time) ([]byte, error) {
	var out bytes.Buffer
	zw := zip.NewWriter(&out)
	for _, f := range files {
		header := zip.FileHeader{Name: f.name, Method: zip.Deflate, Modified: at}
		header.SetMode(f.mode)
		w, err := zw.CreateHeader(&header)
		if err != nil {
			return nil, err
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, err
		}
	}
	err := zw.Close()
	return out.Bytes(), err
}

// sbom returns what a program contains, as CycloneDX: its modules with their checksums, the Go release, and the
// hashes of the program. The command cyclonedx-gomod would add the time, a random number, and a hash of itself, which
// differs from one machine to the other. So its library is called.
func sbom(program, version string) ([]byte, error) {
	generator, err := bin.NewGenerator(program,
		bin.WithLogger(zerolog.Nop()), bin.WithIncludeStdlib(true), bin.WithVersionOverride(version),
		bin.WithShortPURLS(true)) // the long ones name the platform that builds
	if err != nil {
		return nil, err
	}
	bom, err := generator.Generate()
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = cdx.NewBOMEncoder(&out, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bom, cdx.SpecVersion1_6)
	return out.Bytes(), err
}
