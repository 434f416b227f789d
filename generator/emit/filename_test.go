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
	for name, want := range map[string]string{
		"companion": "companion.listener.outbox.go",
		"a_linux":   "a_linux-listener.listener.outbox.go",
		"nul":       "nul-listener.listener.outbox.go",
	} {
		require.Equal(t, want, listenerFile(&model.Listener{Name: name}))
	}
}

// TestFileNamesAreDistinct draws from few words, so that many things have the same name.
func TestFileNamesAreDistinct(t *testing.T) {
	t.Parallel()
	name := rapid.SampledFrom([]string{"listener", "topic", "types", "shared", "ns", "aux", "a_linux", "handlers", "companion"})
	rapid.Check(t, func(rt *rapid.T) {
		taken := make(map[string]string)
		take := func(file, what string) {
			require.NotContains(rt, taken, file, "%s has the file of %s", what, taken[file])
			taken[file] = what
		}
		take(sharedTypesFile, "types")
		for _, listener := range rapid.SliceOfDistinct(name, rapid.ID).Draw(rt, "listeners") {
			take(listenerFile(&model.Listener{Name: listener}), "listener "+listener)
		}
		for _, namespace := range rapid.SliceOfDistinct(name, rapid.ID).Draw(rt, "namespaces") {
			ns := &model.Namespace{Name: namespace}
			take(namespaceFile(ns), "namespace "+namespace)
			for _, topic := range rapid.SliceOfDistinct(name, rapid.ID).Draw(rt, "topics") {
				take(topicFile(&model.Topic{Namespace: ns, Name: topic}), "topic "+namespace+"/"+topic)
			}
		}
	})
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

	listen := func(listener, ns, name, goName string) string {
		l := &model.Listener{Name: listener}
		return names.listen(l, &model.Topic{Namespace: &model.Namespace{Name: ns}, Name: name, GoName: goName})
	}
	require.Equal(t, "companion_handlers.go", names.listener(&model.Listener{Name: "companion"}))
	require.Equal(t, "a_handlers_listener.go", names.listener(&model.Listener{Name: "a"}), "namespace a has the shorter name")
	require.Equal(t, "companion_handle_turn_seen.go", listen("companion", "a", "turn_seen", "TurnSeen"))
	require.Equal(t, "broadcast_handle_turn_seen.go", listen("broadcast", "a", "turn_seen", "TurnSeen"))
	require.Equal(t, "companion_handle_url_made.go", listen("companion", "a", "made", "URLMade"))
	require.Equal(t, "companion_handle_linux_topic.go", listen("companion", "a", "linux", "Linux"))
	require.Equal(t, "handle_a_handle_turn_seen.go", topic(a, "a_handle_turn_seen", "AHandleTurnSeen"))
	require.Equal(t, "handle_a_handle_turn_seen_topic.go", listen("handle_a", "a", "turn_seen", "TurnSeen"))
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
		ns, listener := &model.Namespace{Name: name}, &model.Listener{Name: name}
		topic := &model.Topic{Namespace: ns, Name: name, GoName: "Other"}
		plain := &model.Topic{Namespace: ns, Name: name, GoName: strings.ReplaceAll(name, "_", "")}
		for _, file := range []string{
			namespaceFile(ns), topicFile(topic), newStubNames().handlers(ns), newStubNames().handle(topic), newStubNames().handle(plain),
			listenerFile(listener), newStubNames().listener(listener), newStubNames().listen(listener, topic), newStubNames().listen(listener, plain),
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

func TestLowerFirst(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{"Turn": "turn", "URL": "url", "URLSeen": "urlSeen", "IDs": "iDs", "A": "a", "AB2": "ab2"} {
		require.Equal(t, want, lowerFirst(name))
	}
}
