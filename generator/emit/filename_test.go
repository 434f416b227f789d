package emit

import (
	"go/build"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/outboxgen/outboxgen/generator/model"
)

func TestFileNames(t *testing.T) {
	t.Parallel()
	for ns, want := range map[string]string{
		"mini_chat":       "mini_chat.outbox.go",
		"linux":           "linux.outbox.go",
		"test":            "test.outbox.go",
		"a_linux":         "a_linux-ns.outbox.go",
		"a_linux_test":    "a_linux_test-ns.outbox.go",
		"a_windows_amd64": "a_windows_amd64-ns.outbox.go",
		"a_test":          "a_test.outbox.go",
		"aux":             "aux-ns.outbox.go",
	} {
		require.Equal(t, want, namespaceFile(&model.Namespace{Name: ns}))
	}
	topic := &model.Topic{Namespace: &model.Namespace{Name: "a_arm64"}, Name: "b_linux"}
	require.Equal(t, "a_arm64-ns.b_linux.outbox.go", topicFile(topic))
}

func TestStubNames(t *testing.T) {
	t.Parallel()
	names := newStubNames()
	a, b := &model.Namespace{Name: "a"}, &model.Namespace{Name: "b"}
	topic := func(ns *model.Namespace, name, goName string) string {
		return names.handle(&model.Topic{Namespace: ns, Name: name, GoName: goName})
	}
	require.Equal(t, "a_handlers.go", names.handlers(a))
	require.Equal(t, "handle_turn_id_seen.go", topic(a, "turn_id_seen", "TurnIDSeen"))
	require.Equal(t, "handle_url_made.go", topic(a, "made", "URLMade"))
	require.Equal(t, "handle_url_made_topic.go", topic(b, "made", "UrlMade"))
	require.Equal(t, "handle_b_url_made_topic.go", topic(b, "made2", "URLmade"[:3]+"Made"))
	require.Equal(t, "handle_a_test_topic.go", topic(a, "a_test", "ATest"))
	require.Equal(t, "handle_darwin_topic.go", topic(a, "darwin", "Darwin"))
}

// TestNamesSuitEveryPlatform asks go/build about names of every platform word.
func TestNamesSuitEveryPlatform(t *testing.T) {
	t.Parallel()
	contexts := []build.Context{build.Default, build.Default}
	for i, platform := range [][2]string{{"linux", "amd64"}, {"windows", "arm64"}} {
		contexts[i].GOOS, contexts[i].GOARCH = platform[0], platform[1]
		contexts[i].OpenFile = func(string) (io.ReadCloser, error) {
			return io.NopCloser(strings.NewReader("package a\n")), nil
		}
	}
	rapid.Check(t, func(rt *rapid.T) {
		words := []string{"linux", "windows", "amd64", "arm64", "test", "x", "", "aux"}
		name := "n" + strings.Join(rapid.SliceOfN(rapid.SampledFrom(words), 0, 3).Draw(rt, "words"), "_")
		ns := &model.Namespace{Name: name}
		topic := &model.Topic{Namespace: ns, Name: name, GoName: "Other"}
		plain := &model.Topic{Namespace: ns, Name: name, GoName: strings.ReplaceAll(name, "_", "")}
		for _, file := range []string{
			namespaceFile(ns), topicFile(topic), newStubNames().handlers(ns), newStubNames().handle(topic), newStubNames().handle(plain),
		} {
			require.False(rt, strings.HasSuffix(file, "_test.go"), file)
			for _, ctx := range contexts {
				match, err := ctx.MatchFile("", file)
				require.NoError(rt, err)
				require.True(rt, match, file)
			}
		}
	})
}

func TestSnake(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"TurnFinalized": "turn_finalized", "URLSeen": "url_seen", "SeenURL": "seen_url", "A": "a", "AB": "ab", "Oauth2Done": "oauth2_done",
	} {
		require.Equal(t, want, snake(name))
	}
}

func TestLowerFirst(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{"Turn": "turn", "URL": "url", "URLSeen": "urlSeen", "IDs": "iDs", "A": "a", "AB2": "ab2"} {
		require.Equal(t, want, lowerFirst(name))
	}
}
