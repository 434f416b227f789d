package diag

import "slices"

// Rule is the stable id of a check. It is part of the tool's interface: scripts and editors match it.
type Rule string

// Rules about the YAML itself.
const (
	YAMLSyntax   Rule = "yaml-syntax"
	YAMLEncoding Rule = "yaml-encoding"
	YAMLTooLarge Rule = "yaml-too-large"
	YAMLTooDeep  Rule = "yaml-too-deep"
	YAMLAnchor   Rule = "yaml-anchor"
	YAMLAlias    Rule = "yaml-alias"
	YAMLMergeKey Rule = "yaml-merge-key"
	YAMLTag      Rule = "yaml-tag"
	YAMLDocument Rule = "yaml-document"
)

// Rules about keys and the shape of their values.
const (
	UnknownVersion Rule = "unknown-version"
	UnknownKey     Rule = "unknown-key"
	DuplicateKey   Rule = "duplicate-key"
	WrongType      Rule = "wrong-type"
	MissingKey     Rule = "missing-key"
	UnknownValue   Rule = "unknown-value"
	EmptySection   Rule = "empty-section"
)

// Rules about names.
const (
	BadName       Rule = "bad-name"
	BadGoName     Rule = "bad-go-name"
	NameCollision Rule = "name-collision"
)

// Rules about types and fields.
const (
	UnknownType       Rule = "unknown-type"
	BadType           Rule = "bad-type"
	RecursiveType     Rule = "recursive-type"
	EnumEmpty         Rule = "enum-empty"
	EnumDuplicate     Rule = "enum-duplicate"
	EnumBadValue      Rule = "enum-bad-value"
	AttributeType     Rule = "attribute-type"
	AttributeBounds   Rule = "attribute-bounds"
	AttributeConflict Rule = "attribute-conflict"
	PatternInvalid    Rule = "pattern-invalid"
)

// Rules about tenants, keys, entities and turns.
const (
	TenantUnknownField    Rule = "tenant-unknown-field"
	TenantNotUUID         Rule = "tenant-not-uuid"
	TemplateSyntax        Rule = "template-syntax"
	DedupeUnknownField    Rule = "dedupe-unknown-field"
	DedupeOptionalField   Rule = "dedupe-optional-field"
	DedupeFieldType       Rule = "dedupe-field-type"
	DedupeSensitive       Rule = "dedupe-sensitive-field"
	DedupeNotInjective    Rule = "dedupe-not-injective"
	DedupeTenantPrefix    Rule = "dedupe-tenant-prefix"
	DedupeTenantOnly      Rule = "dedupe-tenant-only"
	PartitionUnknownField Rule = "partition-unknown-field"
	PartitionOptional     Rule = "partition-optional-field"
	PartitionFieldType    Rule = "partition-field-type"
	PartitionSensitive    Rule = "partition-sensitive-field"
	PartitionNotInjective Rule = "partition-not-injective"
	SealedKeyField        Rule = "sealed-key-field"
	EntityUnknownField    Rule = "entity-unknown-field"
	EntityOptionalField   Rule = "entity-optional-field"
	EntityFieldType       Rule = "entity-field-type"
	EntitySensitive       Rule = "entity-sensitive-field"
	EntityNotInjective    Rule = "entity-not-injective"
	EntityVersionType     Rule = "entity-version-type"
	FairnessNeedsTenant   Rule = "fairness-needs-tenant"
	FairnessLogTopic      Rule = "fairness-log-topic"
	TopicMaxLag           Rule = "topic-max-lag"
)

// Rules about limits and batches.
const (
	LimitUnknownField     Rule = "limit-unknown-field"
	LimitOptionalField    Rule = "limit-optional-field"
	LimitFieldType        Rule = "limit-field-type"
	LimitSensitive        Rule = "limit-sensitive-field"
	LimitNotInjective     Rule = "limit-not-injective"
	LimitNeedsTenant      Rule = "limit-needs-tenant"
	LimitNeedsDestination Rule = "limit-needs-destination"
	LimitDuplicate        Rule = "limit-duplicate"
	LimitEmpty            Rule = "limit-empty"
	LimitBounds           Rule = "limit-bounds"
	LimitCount            Rule = "limit-count"
	LimitLogTopic         Rule = "limit-log-topic"
	BatchBounds           Rule = "batch-bounds"
	BatchPublish          Rule = "batch-publish"
	BatchLogTopic         Rule = "batch-log-topic"
	ListenerRate          Rule = "listener-rate"
)

// Rules about publishing and consuming.
const (
	PublishBroker           Rule = "publish-broker"
	PublishDestination      Rule = "publish-destination"
	PublishDestinationField Rule = "publish-destination-field"
	PublishKey              Rule = "publish-key"
	PublishHeader           Rule = "publish-header"
	PublishTombstone        Rule = "publish-tombstone"
	PublishTombstoneOrder   Rule = "publish-tombstone-order"
	PublishUnread           Rule = "publish-unread"
	PublishUnordered        Rule = "publish-unordered"
	PublishTwice            Rule = "publish-twice"
	PublishWireName         Rule = "publish-wire-name"
	PublishSealed           Rule = "publish-sealed"
	ListenerPublish         Rule = "listener-publish"
	ConsumerEmpty           Rule = "consumer-empty"
	ConsumerInternal        Rule = "consumer-internal"
)

// Rules about policies, versions and listeners.
const (
	RetryBounds            Rule = "retry-bounds"
	RetryShort             Rule = "retry-short"
	LeaseBounds            Rule = "lease-bounds"
	RetentionBounds        Rule = "retention-bounds"
	VersionBounds          Rule = "version-bounds"
	ListenerMissing        Rule = "listener-missing"
	ListenerNone           Rule = "listener-none"
	ListenerUnknownTopic   Rule = "listener-unknown-topic"
	ListenerQueueTopic     Rule = "listener-queue-topic"
	ListenerDuplicateTopic Rule = "listener-duplicate-topic"
	ListenerConcurrency    Rule = "listener-concurrency"
	ListenerShards         Rule = "listener-shards"
	ListenerMaxLag         Rule = "listener-max-lag"
)

// Rules about operations.
const (
	OperationUnknownTopic   Rule = "operation-unknown-topic"
	OperationDuplicateTopic Rule = "operation-duplicate-topic"
)

// Rules about the output folder.
const (
	OutputShared  Rule = "output-shared"
	OutputPackage Rule = "output-package"
)

// Rules about the lock and about changes of what it holds.
const (
	LockInvalid         Rule = "lock-invalid"
	LockEdited          Rule = "lock-edited"
	LockGap             Rule = "lock-gap"
	ChangeVersion       Rule = "change-version"
	ChangeTopicRemoved  Rule = "change-topic-removed"
	ChangeFieldRemoved  Rule = "change-field-removed"
	ChangeFieldAdded    Rule = "change-field-added"
	ChangeFieldOptional Rule = "change-field-optional"
	ChangeFieldType     Rule = "change-field-type"
	ChangeBounds        Rule = "change-bounds"
	ChangeEnumValue     Rule = "change-enum-value"
	ChangeTenant        Rule = "change-tenant"
	ChangeDedupeKey     Rule = "change-dedupe-key"
	ChangePartitionKey  Rule = "change-partition-key"
	ChangeEntity        Rule = "change-entity"
	ChangeDelivery      Rule = "change-delivery"
	ChangePublish       Rule = "change-publish"
	ChangeSealed        Rule = "change-sealed"
	ChangeGoName        Rule = "change-go-name"
)

// RuleInfo describes a rule in one line.
type RuleInfo struct {
	ID      Rule
	Summary string
}

var rules = []RuleInfo{
	{YAMLSyntax, "The file is valid YAML."},
	{YAMLEncoding, "The file is UTF-8 without NUL and other control characters."},
	{YAMLTooLarge, "The file has at most 1 MiB."},
	{YAMLTooDeep, "Mappings and lists are nested at most 32 deep."},
	{YAMLAnchor, "There are no anchors (&name): repeat the value, or move it into types or defaults."},
	{YAMLAlias, "There are no aliases (*name): repeat the value, or move it into types or defaults."},
	{YAMLMergeKey, "There are no merge keys (<<)."},
	{YAMLTag, "There are no tags (!name, !!str): quote a value to make it text."},
	{YAMLDocument, "The file holds one document."},

	{UnknownVersion, "This outboxgen reads the version of the file."},
	{UnknownKey, "Every key is known in its mapping."},
	{DuplicateKey, "Every key is unique in its mapping."},
	{WrongType, "Every value has the type of its key."},
	{MissingKey, "Required keys are present."},
	{UnknownValue, "A key with a fixed set of values has one of them."},
	{EmptySection, "Namespaces, topics, fields, limits, a listener's topics and an operation's outcomes are not empty."},

	{BadName, "Names match ^[a-z][a-z0-9_]{0,40}$. A package is not a Go keyword and can be imported, a schema is not a " +
		"reserved word of SQL."},
	{BadGoName, "A go override is an exported Go identifier of letters and digits."},
	{NameCollision, "Names, and the names generated from them, stay distinct in Go and in SQL, where case may not count."},

	{UnknownType, "A field's type is built in or declared under types."},
	{BadType, "A field's type is T, []T or map[string]T, with a trailing ? if it is optional."},
	{RecursiveType, "A shared type does not contain itself, directly or through other types."},
	{EnumEmpty, "An enum has at least one value."},
	{EnumDuplicate, "The values of an enum are distinct."},
	{EnumBadValue, "An enum value starts with a letter or digit and holds only letters, digits, '_', '-' and '.'. A " +
		"value that names its constant with go is up to 200 bytes of printable text."},
	{AttributeType, "A field attribute applies to the type of its field."},
	{AttributeBounds, "The bounds of a field fit its type, and the lower one is not above the upper one."},
	{AttributeConflict, "The attributes of a field or type do not contradict each other."},
	{PatternInvalid, "A pattern is a regular expression of Go's regexp package (RE2)."},

	{TenantUnknownField, "The tenant is a field of the payload."},
	{TenantNotUUID, "The tenant is a required field of type uuid, or of a shared scalar that is one."},
	{TemplateSyntax, "A key template consists of printable ASCII and {field}, in segments separated by '/'."},
	{DedupeUnknownField, "A dedupe_key names fields of the payload."},
	{DedupeOptionalField, "A dedupe_key uses only required fields."},
	{DedupeFieldType, "A dedupe_key uses only uuid, string, int32, int64, date and enum fields."},
	{DedupeSensitive, "A dedupe_key has no sensitive field, because logs and the CLI show keys."},
	{DedupeNotInjective,
		"Different field values never give the same dedupe_key: it has a placeholder, and a '/' between any two."},
	{DedupeTenantPrefix, "With a tenant, the dedupe_key starts with {<tenant field>}/ and has another segment."},
	{DedupeTenantOnly,
		"Warning: a dedupe_key has a field other than the tenant; without one, each tenant has only one event."},
	{PartitionUnknownField, "A partition_key names fields of the payload."},
	{PartitionOptional, "A partition_key uses only required fields."},
	{PartitionFieldType, "A partition_key uses only uuid, string, int32, int64, date and enum fields."},
	{PartitionSensitive, "A partition_key has no sensitive field, because logs and the CLI show keys."},
	{PartitionNotInjective,
		"Different field values never give the same partition_key: it has a placeholder, and a '/' between any two."},
	{SealedKeyField, "A key, limit, entity, tenant, destination or header has no sealed field, because it is stored and " +
		"sent as it is."},
	{EntityUnknownField, "An entity names fields of the payload."},
	{EntityOptionalField, "An entity uses only required fields."},
	{EntityFieldType, "An entity id uses only uuid, string, int32, int64, date and enum fields."},
	{EntitySensitive, "An entity has no sensitive field, because logs and the CLI show entities."},
	{EntityNotInjective,
		"Different field values never give the same entity id: it has a placeholder, and a '/' between any two."},
	{EntityVersionType, "An entity version is a field of type int32 or int64."},
	{FairnessNeedsTenant, "A topic with fairness: tenant has a tenant."},
	{FairnessLogTopic, "Only a queue topic has fairness: listeners get the events of a log topic in order."},
	{TopicMaxLag, "Only a queue topic has max_lag, of at least 1s; a log topic has that of its listeners."},

	{LimitUnknownField, "A limit is per fields of the payload."},
	{LimitOptionalField, "A limit is per required fields only."},
	{LimitFieldType, "A limit is per uuid, string, int32, int64, date and enum fields only."},
	{LimitSensitive, "A limit is not per a sensitive field, because logs and the CLI show keys."},
	{LimitNotInjective,
		"Different field values never give the same key of a limit: it has a placeholder, and a '/' between any two."},
	{LimitNeedsTenant, "A topic with a limit per tenant has a tenant."},
	{LimitNeedsDestination,
		"A topic with a limit per destination is published to the destination that a field of each event has."},
	{LimitDuplicate, "No two limits of a topic are per the same."},
	{LimitEmpty, "A limit has concurrency, rate or both."},
	{LimitBounds, "The concurrency of a limit, and the number of its rate, are 1 to 2147483647. Its period is 1s to 24h."},
	{LimitCount, "A topic has at most four limits."},
	{LimitLogTopic, "Only a queue topic has limits; a log topic has listeners with concurrency, shards and rate."},
	{BatchBounds, "The size of a batch is 2 to 10000, and its wait at most 1m."},
	{BatchPublish, "Only a topic or listener with a handler has a batch: publishers send many events in one call anyway."},
	{BatchLogTopic, "Only a queue topic has a batch; a log topic has listeners with one."},
	{ListenerRate, "The number of a listener's rate is 1 to 2147483647, and its period 1s to 24h."},

	{RetryBounds,
		"max_attempts is 1 to 1000, base_delay is at least 1ms and at most max_delay, and max_delay is at most 720h."},
	{RetryShort, "Warning: the retries of a topic or listener last at least ten minutes, so that a restart of what it " +
		"calls makes no dead letters."},
	{LeaseBounds, "A lease is 1s to 24h."},
	{RetentionBounds, "retention.delivered, the dedupe window, is longer than the retries of an event can take, or 0s " +
		"in a queue topic without a dedupe_key. retention.dead is at least as long."},
	{VersionBounds, "A payload version is 1 to 2147483647."},
	{ListenerMissing, "A log topic has a listener, or listeners: none."},
	{ListenerNone, "Only a log topic that no listener reads has listeners: none."},
	{ListenerUnknownTopic, "A listener names declared topics."},
	{ListenerQueueTopic, "A listener reads topics with delivery log."},
	{ListenerDuplicateTopic, "A listener names each topic once."},
	{ListenerConcurrency, "A listener's concurrency is 1 to 1000, and 1 with mode transactional."},
	{ListenerShards, "A listener has 1 to 64 shards."},
	{ListenerMaxLag, "A listener's max_lag is at least 1s."},

	{PublishBroker, "A publish has exactly one of kafka, nats, amqp, redis, webhook and custom. The name of a custom " +
		"one matches ^[a-z][a-z0-9_]{0,40}$ and is not that of another."},
	{PublishDestination, "A Kafka topic is 1 to 249 letters, digits, '.', '_' or '-'. A NATS subject is tokens of " +
		"printable ASCII joined by '.', without spaces or wildcards. An address of AMQP is /exchanges/NAME/ROUTING-KEY, " +
		"/exchanges/NAME or /queues/NAME. A Redis stream is printable ASCII without spaces. A webhook is a name. A custom " +
		"destination is 1 to 500 printable ASCII characters without spaces. A webhook or custom publisher has a " +
		"destination or a field with it, not both."},
	{PublishDestinationField,
		"A field with the destination is a required uuid, string, int32, int64 or enum of a queue topic and not sensitive."},
	{PublishKey, "A publish key follows the rules of a partition_key. Only a queue topic has one: a log topic is " +
		"published in the order of its partition_key."},
	{PublishHeader, "The name of a header matches ^[a-z][a-z0-9-]{0,60}$ and is not reserved for publishers. Its value " +
		"is printable ASCII with {field} of required scalars and enums that are not sensitive."},
	{PublishTombstone, "A tombstone is published to Kafka and has a key: the partition_key, or a publish key."},
	{PublishTombstoneOrder, "Warning: a tombstone is in a log topic. A queue topic has no order, so that an older " +
		"record of its key may come after it and stay."},
	{PublishWireName, "A wire_name is 1 to 128 letters, digits, '.', '_', '-', ':' or '/', and begins and ends with a " +
		"letter or digit. Only a topic with publish has one, and no other published topic has it or had it."},
	{PublishSealed, "A topic that is sealed as a whole has no publish key, no header with a {field} and no field with the " +
		"destination, because publishers do not open payloads."},
	{PublishUnread, "A log topic with publish is read by a listener with publish: true, or has listeners: none."},
	{PublishUnordered, "Warning: a log topic with publish has a partition_key; without one, its events have no order " +
		"and no key at the broker."},
	{PublishTwice, "Warning: one listener publishes a topic; with several, each event is published more than once."},
	{ListenerPublish, "A listener with publish: true is leased, and all its topics have publish, to the same broker."},
	{ConsumerEmpty, "A file with a consumer publishes at least one topic."},
	{ConsumerInternal,
		"Warning: the consumer package is not below a folder named internal, from which other modules cannot import it."},

	{OperationUnknownTopic, "An outcome of an operation names declared topics."},
	{OperationDuplicateTopic, "An outcome of an operation names each topic once."},

	{OutputShared, "No other YAML file generates the same Go file."},
	{OutputPackage, "The output folder holds only Go files of the package."},

	{LockInvalid, "The lock is as outboxgen freeze writes it, in a format that this outboxgen reads."},
	{LockEdited, "A version in the lock is as outboxgen freeze wrote it: its sum fits."},
	{LockGap, "The versions of a topic in the lock follow each other, and the next one is one higher."},
	{ChangeVersion, "The version of a topic is not lowered."},
	{ChangeTopicRemoved, "A topic that is frozen is still declared."},
	{ChangeFieldRemoved, "A frozen version keeps its fields, under their names."},
	{ChangeFieldAdded, "A field that is added to a frozen version is optional."},
	{ChangeFieldOptional, "A field of a frozen version stays optional, or required."},
	{ChangeFieldType, "A field of a frozen version keeps its type."},
	{ChangeBounds, "The bounds of a frozen version are only widened, and a pattern is only removed."},
	{ChangeEnumValue, "An enum of a frozen version keeps its values."},
	{ChangeTenant, "A frozen version keeps its tenant."},
	{ChangeDedupeKey, "A frozen version keeps its dedupe_key."},
	{ChangePartitionKey, "A frozen version keeps its partition_key."},
	{ChangeEntity, "A frozen version keeps its entity."},
	{ChangeDelivery, "A frozen version keeps its delivery. Warning: a higher version has the delivery of the one before."},
	{ChangePublish, "A frozen version keeps its broker, its destination, its publish key and whether it is a tombstone. " +
		"A log topic may get a publish."},
	{ChangeSealed, "A field of a frozen version, and its payload as a whole, stays sealed, or stays open."},
	{ChangeGoName, "Warning: the Go names and Go types of a frozen version stay, so that code that uses them compiles."},
}

// Rules returns every rule with its description, in the order of the documentation.
func Rules() []RuleInfo { return slices.Clone(rules) }
