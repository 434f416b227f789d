package spec

import "github.com/outboxgen/outboxgen/generator/diag"

// lockFormat is the version of the lock that this package reads.
const lockFormat = "1"

// maxLockBytes is the largest lock that is read. It holds the history of every topic, so it may be larger than the
// YAML.
const maxLockBytes = 16 << 20

// Lock is an outbox.lock.yaml.
type Lock struct {
	File   string
	Pos    diag.Pos
	Format Value[string]
	Topics Section[*FrozenTopic]
}

// FrozenTopic holds the versions of a topic. Its name is "namespace/topic".
type FrozenTopic struct {
	Name     Value[string]
	Versions Section[*Frozen]
}

// Frozen is a version of a topic with the shared types that it uses. Topic has only what a lock holds.
type Frozen struct {
	Version Value[string]
	Sum     Value[string]
	Types   Section[*Type]
	Topic   Topic
}

// DecodeLock reads source, an outbox.lock.yaml that positions refer to as name. The Lock is nil when there are
// findings. It never panics.
func DecodeLock(source []byte, name string) (*Lock, diag.List) {
	d := &decoder{Reporter: diag.NewReporter(name), hints: make(map[diag.Pos]string), most: maxLockBytes}
	root := d.parse(source)
	if root == nil {
		return nil, d.Findings()
	}
	d.guard(root)
	l := &Lock{File: name, Pos: d.at(root)}
	lockFile.decode(d, root, place{}, l)
	if findings := d.Findings(); len(findings) > 0 {
		return nil, findings
	}
	return l, nil
}

var lockFile = &record[Lock]{
	keys: []key[Lock]{
		required("lock", oneOf(lockFormat), func(l *Lock) *Value[string] { return &l.Format }, ""),
		required("topics", frozenTopics, func(l *Lock) *Section[*FrozenTopic] { return &l.Topics }, ""),
	},
}

var frozenTopics = &dict[FrozenTopic]{
	item: &only[FrozenTopic, Section[*Frozen]]{shape: frozenVersions, member: func(t *FrozenTopic) *Section[*Frozen] {
		return &t.Versions
	}},
	name:  func(t *FrozenTopic) *Value[string] { return &t.Name },
	label: func(_, name string) string { return "topic " + name },
}

var frozenVersions = &dict[Frozen]{
	item:  frozen,
	name:  func(f *Frozen) *Value[string] { return &f.Version },
	label: func(outer, name string) string { return "version " + name + " of " + outer },
	some:  true,
}

// frozen has the keys of a topic that a lock holds, with the shapes that they have in the YAML.
var frozen = &record[Frozen]{
	keys: []key[Frozen]{
		required("sum", freeText, func(f *Frozen) *Value[string] { return &f.Sum }, ""),
		required("delivery", oneOf("queue", "log"), func(f *Frozen) *Value[string] { return &f.Topic.Delivery }, ""),
		optional("sealed", flag, func(f *Frozen) *Value[bool] { return &f.Topic.Sealed }, ""),
		optional("tenant", nameText, func(f *Frozen) *Value[string] { return &f.Topic.Tenant }, ""),
		optional("dedupe_key", templateText, func(f *Frozen) *Value[string] { return &f.Topic.DedupeKey }, ""),
		optional("partition_key", templateText, func(f *Frozen) *Value[string] { return &f.Topic.PartitionKey }, ""),
		optional("entity", entity, func(f *Frozen) *Entity { return &f.Topic.Entity }, ""),
		optional("publish", publish, func(f *Frozen) *Publish { return &f.Topic.Publish }, ""),
		optional("wire_name", wireText, func(f *Frozen) *Value[string] { return &f.Topic.WireName }, ""),
		required("payload", fieldsOf(false), func(f *Frozen) *Section[*Field] { return &f.Topic.Payload }, ""),
		optional("types", types, func(f *Frozen) *Section[*Type] { return &f.Types }, ""),
	},
}
