// Command binaries builds the program outboxgen for each platform, and writes what a release offers for download: an
// archive and an SBOM per platform, and checksums. The same source, version and Go release give the same bytes, in
// whatever folder.
//
//	binaries [-version v0.1.0] [-platforms linux/amd64,windows/arm64] [-root ..] [-out dist]
package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

const everywhere = "darwin/amd64,darwin/arm64,linux/amd64,linux/arm64,windows/amd64,windows/arm64"

func main() {
	root := flag.String("root", "..", "the `folder` of the source")
	out := flag.String("out", "../dist", "the `folder` to write to, which must be empty or missing")
	version := flag.String("version", "", "the `version`, v0.1.0 for example; by default the tag of a clean checkout")
	platforms := flag.String("platforms", everywhere, "a `list` of GOOS/GOARCH")
	flag.Parse()
	err := errors.New("there are no arguments, only flags: see -help")
	if flag.NArg() == 0 {
		err = run(*root, *out, *version, strings.Split(*platforms, ","))
	}
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "binaries:", err)
		os.Exit(1)
	}
}

func run(root, out, version string, platforms []string) (err error) {
	src, err := inspect(root, version)
	if err != nil {
		return err
	}
	if found, _ := os.ReadDir(out); len(found) > 0 {
		return fmt.Errorf("%s is not empty: remove what is in it, so that no file of another version is left", out)
	}
	temp, err := os.MkdirTemp("", "outboxgen-binaries-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temp)) }()
	extras, err := src.extras(filepath.Join(temp, "host"))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	var sums []string
	write := func(name string, content []byte) error {
		sums = append(sums, fmt.Sprintf("%x  %s\n", sha256.Sum256(content), name))
		return os.WriteFile(filepath.Join(out, name), content, 0o644)
	}
	for _, platform := range platforms {
		goos, goarch, ok := strings.Cut(platform, "/")
		if !ok {
			return fmt.Errorf("-platforms: %q is not GOOS/GOARCH, such as linux/amd64", platform)
		}
		program, err := src.build(filepath.Join(temp, goos+"_"+goarch), goos, goarch)
		if err != nil {
			return err
		}
		content, err := os.ReadFile(program)
		if err != nil {
			return err
		}
		files := append([]entry{{filepath.Base(program), 0o755, content}}, extras...)
		pack, ending := tarball, ".tar.gz"
		if goos == "windows" {
			pack, ending = zipball, ".zip"
		}
		packed, err := pack(files, src.time)
		if err != nil {
			return err
		}
		bom, err := sbom(program, src.sbomVersion())
		if err != nil {
			return fmt.Errorf("write SBOM for %s: %w", platform, err)
		}
		name := fmt.Sprintf("outboxgen_%s_%s_%s", src.name, goos, goarch)
		if err := errors.Join(write(name+ending, packed), write(name+".cdx.json", bom)); err != nil {
			return err
		}
		fmt.Printf("%s%s: %.1f MB, the program %.1f MB\n", name, ending, float64(len(packed))/1e6, float64(len(content))/1e6)
	}
	slices.SortFunc(sums, func(a, b string) int { return strings.Compare(a[64:], b[64:]) })
	return os.WriteFile(filepath.Join(out, "checksums.txt"), []byte(strings.Join(sums, "")), 0o644)
}

// source is what is built.
type source struct {
	root  string
	name  string    // in the names of archives: 0.1.0, or 0.0.0-20261121131415-0123456789ab of a commit
	stamp string    // what outboxgen version tells, see cmd/outboxgen/internal/cli/version.go
	time  time.Time // of the commit
}

// sbomVersion returns the version with which a module would be required.
func (s source) sbomVersion() string { return "v" + s.name }

// build returns the path of the program, which it writes to dir. No setting of the environment changes the bytes.
func (s source) build(dir, goos, goarch string) (string, error) {
	program := filepath.Join(dir, "outboxgen")
	if goos == "windows" {
		program += ".exe"
	}
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags",
		"-s -w -buildid= -X 'github.com/outboxgen/outboxgen/cmd/outboxgen/internal/cli.stamp="+s.stamp+"'",
		"-o", program, "./cmd/outboxgen")
	cmd.Dir = s.root
	cmd.Env = append(os.Environ(), "GOOS="+goos, "GOARCH="+goarch, "CGO_ENABLED=0",
		"GOAMD64=v1", "GOARM64=v8.0", "GOEXPERIMENT=", "GOFIPS140=off", "GOFLAGS=", "GOWORK=off")
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build for %s/%s: %w\n%s", goos, goarch, err, text)
	}
	return program, nil
}

// extras returns the files that are in each archive. The program of this machine, which it builds in dir, writes the
// completions.
func (s source) extras(dir string) (files []entry, err error) {
	for _, name := range []string{"CHANGELOG.md", "LICENSE", "README.md"} {
		content, err := os.ReadFile(filepath.Join(s.root, name))
		if err != nil {
			return nil, err
		}
		files = append(files, entry{name, 0o644, content})
	}
	dir, err = filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	host, err := s.build(dir, runtime.GOOS, runtime.GOARCH)
	if err != nil {
		return nil, err
	}
	for _, shell := range [][2]string{
		{"zsh", "_outboxgen"}, {"bash", "outboxgen.bash"}, {"fish", "outboxgen.fish"}, {"powershell", "outboxgen.ps1"},
	} {
		var stdout, stderr bytes.Buffer
		cmd := exec.Command(host, "completion", shell[0])
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		if err := cmd.Run(); err != nil {
			return nil, fmt.Errorf("outboxgen completion %s: %w: %s", shell[0], err, stderr.Bytes())
		}
		files = append(files, entry{"completions/" + shell[1], 0o644, stdout.Bytes()})
	}
	return files, nil
}
