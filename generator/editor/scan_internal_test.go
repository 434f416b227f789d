package editor

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/generator"
	"github.com/outboxgen/outboxgen/generator/diag"
	"github.com/outboxgen/outboxgen/generator/spec"
)

// sources returns every outbox.yaml of the goldens and examples.
func sources(t testing.TB) map[string]string {
	t.Helper()
	found := make(map[string]string)
	for _, pattern := range []string{"../testdata/*/outbox.yaml", "../../examples/*/*/outbox.yaml"} {
		paths, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, path := range paths {
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			found[path] = string(text)
		}
	}
	require.Greater(t, len(found), 100)
	return found
}

// For YAML without findings the tree has what the decoder reads: the same names, at the same places.
func TestTreeIsWhatTheDecoderReads(t *testing.T) {
	t.Parallel()
	compared := 0
	for path, src := range sources(t) {
		if _, findings := generator.Load([]byte(src), optionsOf(path)); findings.HasErrors() {
			continue
		}
		s, _ := spec.Decode([]byte(src), path)
		text := newText(src)
		x := newIndex(text, scan(src).root())
		declared := func(thing spec.Thing, owner, full string, v spec.Value[string]) {
			symbol := x.symbols[idOf(thing, owner, full)]
			require.NotNil(t, symbol, "%s: %s %s", path, thing, full)
			require.Equal(t, text.at(v.Pos), symbol.node.key.start, "%s: %s %s", path, thing, full)
			compared++
		}
		used := func(id string, v spec.Value[string]) {
			if v.V == "" {
				return
			}
			at := text.at(v.Pos)
			m, ok := x.at(at)
			if !ok {
				m, ok = x.at(at + 1) // behind a quote
			}
			require.True(t, ok, "%s: %s at %s", path, id, v.Pos)
			require.Equal(t, id, m.id, path)
			compared++
		}
		fields := func(owner string, list []*spec.Field) {
			for _, f := range list {
				declared(spec.FieldThing, owner, f.Name.V, f.Name)
				require.Equal(t, f.Type.V, fieldType(x.symbols[idOf(spec.FieldThing, owner, f.Name.V)].node), path)
			}
		}
		for _, typ := range s.Types.Items {
			declared(spec.TypeThing, "", typ.Name.V, typ.Name)
			fields(idOf(spec.TypeThing, "", typ.Name.V), typ.Fields.Items)
		}
		for _, ns := range s.Namespaces.Items {
			declared(spec.NamespaceThing, "", ns.Name.V, ns.Name)
			for _, topic := range ns.Topics.Items {
				full := ns.Name.V + "/" + topic.Name.V
				declared(spec.TopicThing, "", full, topic.Name)
				owner := idOf(spec.TopicThing, "", full)
				fields(owner, topic.Payload.Items)
				for _, v := range []spec.Value[string]{topic.Tenant, topic.Entity.Version, topic.Publish.Webhook.Field} {
					if v.Set() {
						used(idOf(spec.FieldThing, owner, v.V), v)
					}
				}
			}
		}
		for _, l := range s.Listeners.Items {
			declared(spec.ListenerThing, "", l.Name.V, l.Name)
			for _, topic := range l.Topics.Items {
				used(idOf(spec.TopicThing, "", topic.V), topic)
			}
		}
		for _, o := range s.Operations.Items {
			declared(spec.OperationThing, "", o.Name.V, o.Name)
			for _, outcome := range o.Outcomes.Items {
				for _, topic := range outcome.Topics.Items {
					used(idOf(spec.TopicThing, "", topic.V), topic)
				}
			}
		}
	}
	require.Greater(t, compared, 1000)
}

// Every prefix of every file has a tree, whose parts lie in the text.
func TestScanOfEveryPrefix(t *testing.T) {
	t.Parallel()
	for path, src := range sources(t) {
		for end := 0; end <= min(len(src), 2000); end += 5 {
			prefix := src[:end]
			scan(prefix).root().walk(func(n *node) {
				inner := n.inner()
				if n.key.start > n.key.end || n.value.start > n.value.end || n.end > end || inner.start > inner.end {
					require.FailNow(t, "a part is not in the text", "%s: %+v of %q", path, n, prefix)
				}
			})
		}
	}
}

func FuzzScan(f *testing.F) {
	for _, src := range []string{"a: {b: [c, \"d", "- x\n - {y", "a:\n- b: 'c\n  d'\n", "t: |\n  x\ny: \"{a}/{b\"\n", "\uFEFFa: b\r\nc: d"} {
		f.Add(src, 3)
	}
	f.Fuzz(func(t *testing.T, src string, at int) {
		var file File
		d := file.Open(src, optionsOf("outbox.yaml"))
		offset := min(max(at, 0), len(src))
		p := d.position(offset)
		d.Complete(p)
		d.Hover(p)
		d.Outline()
		d.Folds()
		d.Tokens()
		d.Definition(p)
		_, _ = d.Rename(p, "other")
		for _, finding := range d.Findings() {
			d.Fixes(finding)
		}
		if pos := d.offset(p); pos > offset {
			t.Fatalf("offset %d became %d", offset, pos)
		}
	})
}

func TestPlacesInUTF16(t *testing.T) {
	t.Parallel()
	text := newText("a: \"ü😀x\"\r\nb: c\rd: e\u2028f: g\n")
	for _, c := range []struct {
		offset int
		want   Position
	}{{0, Position{0, 0}}, {4, Position{0, 4}}, {6, Position{0, 5}}, {10, Position{0, 7}}, {14, Position{1, 0}}, {19, Position{2, 0}}} {
		require.Equal(t, c.want, text.position(c.offset))
		require.Equal(t, c.offset, text.offset(c.want))
	}
	require.Equal(t, 6, text.offset(Position{0, 6}), "the second half of a character is its start")
	require.Equal(t, 12, text.offset(Position{0, 99}), "behind the end of the line")
	require.Equal(t, len(text.src), text.offset(Position{99, 0}))
	require.Equal(t, "f: g", text.src[text.at(diag.Pos{Line: 4, Column: 1}):len(text.src)-1], "YAML has more line ends")
	require.Equal(t, "x", newText("\uFEFFab: x").src[newText("\uFEFFab: x").at(diag.Pos{Line: 1, Column: 5}):])
}
