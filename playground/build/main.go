// Command build writes the page of the playground: one index.html that has its scripts, its style, and the generator as
// WebAssembly, so that it works from a folder, without a server, and makes no request.
//
//	build [-root ..] [-out ../dist/playground]
package main

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/template"

	"github.com/evanw/esbuild/pkg/api"
)

// maxGenerator bounds the generator, compressed, in bytes.
const maxGenerator = 8_000_000

// nonce is for the style elements that the text editor makes. It need not be secret: the page has no markup from outside.
const nonce = "editor"

func main() {
	root := flag.String("root", "..", "the `folder` of the repository")
	out := flag.String("out", "../dist/playground", "the `folder` to write to")
	flag.Parse()
	if err := run(*root, *out); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "build:", err)
		os.Exit(1)
	}
}

func run(root, out string) error {
	page := filepath.Join(root, "playground", "page")
	examples, err := examplesOf(root)
	if err != nil {
		return err
	}
	list, err := json.Marshal(examples)
	if err != nil {
		return fmt.Errorf("write examples: %w", err)
	}
	wasm, err := compiled(root)
	if err != nil {
		return err
	}
	worker, _, err := bundle(page, "worker.js")
	if err != nil {
		return err
	}
	app, inputs, err := bundle(page, "app.js")
	if err != nil {
		return err
	}
	style, err := os.ReadFile(filepath.Join(page, "style.css"))
	if err != nil {
		return err
	}
	layout, err := template.ParseFiles(filepath.Join(page, "index.html"))
	if err != nil {
		return err
	}
	parts := map[string]string{
		"Style": string(style), "App": app, "Worker": worker, "Examples": string(list),
		"Generator": base64.StdEncoding.EncodeToString(wasm), "Policy": policy(string(style), app),
	}
	for name, part := range parts {
		if lower := strings.ToLower(part); strings.Contains(lower, "</script") || strings.Contains(lower, "</style") ||
			strings.Contains(lower, "<!--") {
			return fmt.Errorf("%s would end its element", name)
		}
	}
	var html bytes.Buffer
	if err := layout.Execute(&html, parts); err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(out, "index.html"), html.Bytes(), 0o644); err != nil {
		return err
	}
	text, err := licences(root, inputs)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(out, "licences.txt"), text, 0o644); err != nil {
		return err
	}
	fmt.Printf("%s: %d examples, generator %.2f MB compressed, page %.2f MB\n", filepath.Join(out, "index.html"),
		len(examples), float64(len(wasm))/1e6, float64(html.Len())/1e6)
	return nil
}

// policy returns the Content-Security-Policy of the page: only what it has in itself, and no request at all. The text
// editor draws with data: images.
func policy(style, app string) string {
	return strings.Join([]string{
		"default-src 'none'", "script-src " + hash(app) + " 'wasm-unsafe-eval'", "worker-src blob:",
		"style-src " + hash(style) + " 'nonce-" + nonce + "'", "img-src data:", "base-uri 'none'", "form-action 'none'",
	}, "; ")
}

func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// compiled compiles the generator to WebAssembly, and returns it compressed.
func compiled(root string) ([]byte, error) {
	temp, err := os.MkdirTemp("", "outboxgen-playground-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(temp)
	file := filepath.Join(temp, "generator.wasm")
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", file, "./wasm")
	build.Dir = filepath.Join(root, "playground")
	build.Env = append(os.Environ(), "GOOS=js", "GOARCH=wasm", "CGO_ENABLED=0")
	if text, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("compile the generator: %w\n%s", err, text)
	}
	code, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var packed bytes.Buffer
	w, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	_, err = w.Write(code)
	if err = errors.Join(err, w.Close()); err != nil {
		return nil, err
	}
	if packed.Len() > maxGenerator {
		return nil, fmt.Errorf("the generator has %d bytes compressed, more than %d", packed.Len(), maxGenerator)
	}
	return packed.Bytes(), nil
}

// bundle returns a script with all that it imports, and the paths of these files in page. The import wasm_exec is the
// file of that name of Go, which must be that of the compiler.
func bundle(page, name string) (script string, inputs []string, err error) {
	goroot, err := goroot()
	if err != nil {
		return "", nil, err
	}
	result := api.Build(api.BuildOptions{
		EntryPoints: []string{filepath.Join(page, name)}, Bundle: true, Format: api.FormatIIFE, Target: api.ES2022,
		MinifyWhitespace: true, MinifyIdentifiers: true, MinifySyntax: true, Charset: api.CharsetASCII,
		Platform: api.PlatformBrowser, LogLevel: api.LogLevelSilent, Metafile: true,
		Define: map[string]string{"NONCE": `"` + nonce + `"`},
		Alias:  map[string]string{"wasm_exec": filepath.Join(goroot, "lib", "wasm", "wasm_exec.js")},
	})
	var all []error
	for _, m := range append(result.Errors, result.Warnings...) {
		all = append(all, fmt.Errorf("bundle %s: %s", name, m.Text))
	}
	if len(all) > 0 {
		return "", nil, errors.Join(all...)
	}
	var meta struct{ Inputs map[string]any }
	if err := json.Unmarshal([]byte(result.Metafile), &meta); err != nil {
		return "", nil, fmt.Errorf("bundle %s: %w", name, err)
	}
	return string(result.OutputFiles[0].Contents), slices.Sorted(maps.Keys(meta.Inputs)), nil
}

func goroot() (string, error) {
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("find Go: %w", err)
	}
	return strings.TrimSpace(string(root)), nil
}
