package spec

import (
	"cmp"
	"strconv"
	"strings"

	"github.com/outboxgen/outboxgen/generator/diag"
)

// formatVersion is the version of the YAML that this package reads.
const formatVersion = "1"

// Decode reads source, an outbox.yaml that positions refer to as name. It returns every finding about keys and
// shapes, sorted, and what could be read despite them, so that the rules of the model can check the rest. The
// Spec is nil when nothing could be read: the YAML does not parse, or its version is unknown. It never panics.
func Decode(source []byte, name string) (*Spec, diag.List) {
	d := &decoder{Reporter: diag.NewReporter(name), hints: make(map[diag.Pos]string), most: maxBytes}
	d.UseHints(d.hints)
	root := d.parse(source)
	if root == nil {
		return nil, d.Findings()
	}
	s := &Spec{File: name, Pos: d.at(root), Hints: d.hints}
	if !d.versionKnown(root) {
		return nil, d.Findings()
	}
	d.guard(root)
	file.decode(d, root, place{}, s)
	return s, d.Findings()
}

// decoder is one run of Decode.
type decoder struct {
	*diag.Reporter
	lines int                 // of the file
	most  int                 // bytes of the file
	hints map[diag.Pos]string // see addHint
}

// at returns the position of n. The library places an empty value at the end of a file, as in "---", after the
// last line.
func (d *decoder) at(n *node) diag.Pos {
	if n.Line > d.lines {
		return d.Pos(d.lines, 1)
	}
	return d.Pos(n.Line, n.Column)
}

// place says where a value is, for messages: under the key, in the thing.
type place struct {
	key string
	in  string // "topic mini_chat/turn_finalized"; empty at the top level
}

// under returns the place of the value of key.
func (p place) under(key string) place { return place{key: key, in: p.in} }

// inside returns " in topic mini_chat/turn_finalized".
func (p place) inside() string {
	if p.in == "" {
		return " at the top level"
	}
	return " in " + p.in
}

// prefix returns "dedupe_key: ".
func (p place) prefix() string {
	switch {
	case p.key != "":
		return p.key + ": "
	case p.in != "":
		return p.in + ": "
	}
	return ""
}

// wrongType reports that n is not what its key needs, unless the guard has already refused it.
func (d *decoder) wrongType(n *node, at place, want string) {
	if refused(n) {
		return
	}
	hint := ""
	if text := shapeHint(n, want, at.prefix() != ""); text != "" {
		hint = " (" + text + ")"
	}
	d.Errorf(d.at(n), diag.WrongType, "%smust be %s, not %s%s", cmp.Or(at.prefix(), "the file "), want, describe(n), hint)
}

// versionKnown reports a version of root that this package does not read, and returns whether to continue:
// findings about the keys of another version would be noise. An absent or unusable version is left to the key
// tables.
func (d *decoder) versionKnown(root *node) bool {
	if root.Kind != mappingNode {
		return true
	}
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		if key.Value != "version" || value.Kind != scalarNode || value.Tag != stringTag || refused(value) {
			continue
		}
		if value.Value != formatVersion {
			d.addHint(value)
			d.Errorf(d.at(value), diag.UnknownVersion, "version: unknown version %s (this outboxgen reads %q)",
				quoteShort(value.Value), formatVersion)
			return false
		}
		return true
	}
	return true
}

// quoteShort quotes user text for a message, and truncates long text.
func quoteShort(s string) string {
	const longest = 60
	if len(s) > longest {
		s = strings.ToValidUTF8(s[:longest], "") + "..."
	}
	return strconv.Quote(s)
}

// Show returns a name of the file as messages write it: without quotes when it is a plain word, else quoted.
func Show(name string) string {
	for i := range len(name) {
		c := name[i]
		if c != '_' && c != '-' && c != '.' && c != '+' && (c < '0' || c > '9') && (c < 'a' || c > 'z') &&
			(c < 'A' || c > 'Z') {
			return quoteShort(name)
		}
	}
	if name == "" || len(name) > 60 {
		return quoteShort(name)
	}
	return name
}
