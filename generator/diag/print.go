package diag

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Format names a printer.
type Format string

// The printers.
const (
	// file:line:column: message [rule], one per line; "warning: " before the message of a warning
	Text          Format = "text"
	JSON          Format = "json"           // one object per line: file line column rule message severity
	GitHubActions Format = "github-actions" // ::error workflow commands, which become annotations

	// Programs read the last two, so the paths in them have slashes on every system.
)

// Formats returns every Format.
func Formats() []Format { return []Format{Text, JSON, GitHubActions} }

// ParseFormat returns the Format of that name, or an error that lists the valid names.
func ParseFormat(name string) (Format, error) {
	if f := Format(name); slices.Contains(Formats(), f) {
		return f, nil
	}
	return "", fmt.Errorf("unknown format %q: use text, json or github-actions", name)
}

// Print writes the findings of l to w in their order, one per line. It writes no control characters except the
// newlines.
func Print(w io.Writer, format Format, l List) error {
	line := Diagnostic.String
	switch format {
	case JSON:
		line = jsonLine
	case GitHubActions:
		line = githubLine
	}
	var out strings.Builder
	for _, d := range l {
		out.WriteString(line(d))
		out.WriteByte('\n')
	}
	if _, err := io.WriteString(w, out.String()); err != nil {
		return fmt.Errorf("write findings: %w", err)
	}
	return nil
}

// Marshal returns the findings of l as a JSON array, each an object as the JSON printer writes it.
func Marshal(l List) ([]byte, error) {
	var out bytes.Buffer
	if err := Print(&out, JSON, l); err != nil {
		return nil, err
	}
	lines := bytes.Split(bytes.TrimSpace(out.Bytes()), []byte("\n"))
	return slices.Concat([]byte("["), bytes.Join(lines, []byte(",")), []byte("]")), nil
}

func jsonLine(d Diagnostic) string {
	var line strings.Builder
	encoder := json.NewEncoder(&line)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(struct {
		File     string   `json:"file"`
		Line     int      `json:"line"`
		Column   int      `json:"column"`
		Rule     Rule     `json:"rule"`
		Message  string   `json:"message"`
		Severity Severity `json:"severity"`
	}{filepath.ToSlash(d.Pos.File), d.Pos.Line, d.Pos.Column, d.Rule, d.Message, d.Severity})
	if err != nil {
		return strconv.Quote(err.Error()) // strings and ints always encode
	}
	return escape(strings.TrimSuffix(line.String(), "\n"), func(r rune) string {
		if high, low := utf16.EncodeRune(r); high != unicode.ReplacementChar {
			return fmt.Sprintf(`\u%04x\u%04x`, high, low)
		}
		return fmt.Sprintf(`\u%04x`, r)
	})
}

// The escapes of GitHub's workflow commands: a property also ends at a colon or comma. Source:
// github.com/actions/toolkit, packages/core/src/command.ts.
var (
	githubMessage  = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	githubProperty = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
)

func githubLine(d Diagnostic) string {
	command := "error"
	if d.Severity == Warning {
		command = "warning"
	}
	return fmt.Sprintf("::%s file=%s,line=%d,col=%d,title=%s::%s", command,
		githubProperty.Replace(printable(filepath.ToSlash(d.Pos.File))), d.Pos.Line, d.Pos.Column,
		githubProperty.Replace(string(d.Rule)), githubMessage.Replace(printable(d.Message)))
}

// printable escapes what a terminal might act on, or show in a different order. Messages already quote the user's text;
// this is a second line of defence.
func printable(s string) string {
	return escape(s, func(r rune) string {
		quoted := strconv.QuoteRuneToASCII(r)
		return quoted[1 : len(quoted)-1]
	})
}

// escape replaces each rune of s that is not printable.
func escape(s string, replace func(rune) string) string {
	clean := func(r rune) bool { return r != utf8.RuneError && unicode.IsPrint(r) }
	if strings.IndexFunc(s, func(r rune) bool { return !clean(r) }) < 0 {
		return s
	}
	var out strings.Builder
	for _, r := range s {
		if clean(r) {
			out.WriteRune(r)
		} else {
			out.WriteString(replace(r))
		}
	}
	return out.String()
}
