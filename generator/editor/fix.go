package editor

import (
	"regexp"
	"strconv"
	"strings"

	"github.com/outboxgen/outboxgen/generator/spec"
)

// Fix is a change of the text that removes a finding.
type Fix struct {
	Title string
	Edits []Edit
}

var setVersion = regexp.MustCompile(`set version: (\d+)`)

// Fixes returns the changes that the message of a finding proposes, the most likely one first; none if it proposes none
// that can be made without asking.
func (d *Document) Fixes(f Finding) (fixes []Fix) {
	if f.Pos.File != d.options.Source {
		return nil
	}
	at := d.at(f.Pos)
	n := d.check().index.begins(at)
	if n == nil {
		return nil
	}
	isKey := n.key.start == at && n.key.end > at
	if instead, better, ok := f.Suggestion(); ok {
		s := n.inner()
		if isKey {
			s = unquoted(d.text, n.key)
		}
		fixes = append(fixes, d.replaceIn(n, isKey, s, instead, better))
	}
	if m := setVersion.FindStringSubmatch(f.Message); m != nil {
		if topic, _ := topicOf(n); topic != nil {
			fixes = append(fixes, Fix{"Set version: " + m[1], []Edit{d.set(topic, "version", m[1])}})
		}
	}
	if fix, ok := d.byHint(n, isKey, f.Message); ok {
		fixes = append(fixes, fix)
	}
	return fixes
}

// replaceIn returns the fix that writes better in place of the text instead of s, which is the key or the value of n. All
// of s is replaced if it does not have that text.
func (d *Document) replaceIn(n *node, isKey bool, s span, instead, better string) Fix {
	edit := func(at span) Fix {
		made := d.of(span{s.start, at.start}) + better + d.of(span{at.end, s.end})
		title := "Replace with " + better
		if !isKey && n.quote == 0 && needsQuotes(made) {
			return Fix{title, []Edit{{d.rangeOf(s), strconv.Quote(made)}}}
		}
		return Fix{title, []Edit{{d.rangeOf(at), better}}}
	}
	var parts []span
	switch {
	case isKey || instead == "":
	case slotOf(n).Refers == spec.Template || slotOf(n).Refers == spec.LimitKey:
		parts = placeholders(d.text, n)
	case slotOf(n).Refers == spec.TypeThing:
		parts = []span{typeWord(d.text, s)}
	}
	for _, part := range parts {
		if d.of(part) == instead {
			return edit(part)
		}
	}
	if i := strings.Index(d.of(s), instead); i >= 0 && instead != "" && !isKey {
		return edit(span{s.start + i, s.start + i + len(instead)})
	}
	return edit(s)
}

// needsQuotes reports whether a text cannot stand in YAML without quotes.
func needsQuotes(text string) bool {
	return text == "" || strings.ContainsAny(text[:1], "[]{}*&!|>'\"%@#,?:-`") || strings.ContainsAny(text, "[]{},") ||
		strings.Contains(text, ": ") || strings.Contains(text, " #")
}

// set returns the edit that gives a key of a mapping a value.
func (d *Document) set(n *node, key, value string) Edit {
	if c := n.child(key); c != nil {
		return Edit{d.rangeOf(c.value), value}
	}
	return d.newKey(n, key+": "+value)
}

// byHint returns the fix that a hint in a message describes.
func (d *Document) byHint(n *node, isKey bool, message string) (Fix, bool) {
	if isKey || n.value.end <= n.value.start || d.oneLine(n.value) != n.value.end {
		return Fix{}, false
	}
	value, raw := n.value, d.of(n.value)
	change := func(title, to string) (Fix, bool) {
		return Fix{title, []Edit{{d.rangeOf(value), to}}}, true
	}
	plain := n.kind == scalar && n.quote == 0
	switch {
	case strings.HasSuffix(message, "(put it in [ ])"):
		return change("Put it in [ ]", "["+raw+"]")
	case strings.HasSuffix(message, "(remove the quotes)") && n.quote != 0:
		return change("Remove the quotes", d.of(n.inner()))
	case strings.HasSuffix(message, "(a template needs quotes)") && n.flow && !n.parent.flow: // text may follow the }
		line := d.src[n.value.start:d.lineEnd(d.position(n.value.start).Line)]
		raw, _, _ = strings.Cut(line, " #")
		raw = strings.TrimRight(raw, " ")
		value.end = value.start + len(raw)
		return change("Put it in quotes", strconv.Quote(raw))
	case strings.Contains(message, " in quotes, not ") && plain:
		return change("Put it in quotes", strconv.Quote(raw))
	case strings.HasSuffix(message, "(a space is missing after the colon)") && plain:
		return change("Add a space after the colon", strings.Replace(raw, ":", ": ", 1))
	case strings.HasSuffix(message, `(a comment needs a space before "#")`) && plain:
		return change("Add a space before the comment", strings.Replace(raw, "#", " #", 1))
	case strings.HasSuffix(message, " at its end)") && plain:
		return change("Remove the last character", raw[:len(raw)-1])
	}
	return Fix{}, false
}
