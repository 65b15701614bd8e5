"""Every Redis key: name, type, fields, lifetime. The only file that spells a key, for Python and
for Lua.

All keys share one prefix with a hash tag (`{pm}:`), so that a script may build them from that
prefix. `<q>` is a queue's name (`generate.<model>`, `webhooks`, `batches`), `<p>` a priority.
Instants are milliseconds of Redis TIME.
"""

import hashlib
from dataclasses import dataclass
from string import Formatter

from queueing.job import Idempotency


@dataclass(frozen=True, slots=True)
class Key:
    """A family of keys: its name in Lua and the template of what follows the prefix."""

    name: str
    template: str

    def of(self, prefix: str, **parts: str) -> str:
        """Spell one key of the family."""
        return prefix + self.template.format(**parts)

    def as_lua(self) -> str:
        """Return a Lua function that spells a key from the global prefix `P` and the template's
        fields in order.
        """
        pieces, fields = ["P"], []
        for literal, field, _spec, _conversion in Formatter().parse(self.template):
            if literal:
                pieces.append(f"'{literal}'")
            if field is not None:
                pieces.append(field)
                fields.append(field)
        head = f"local function {self.name}_key({', '.join(fields)})"
        return f"{head} return {' .. '.join(pieces)} end\n"


# hash, until record_ttl_s after the end. queue tenant priority state arrival_ms due_ms deadline_ms?
# cost weight? bytes max_losses? fence losses attempts worker? first_claim_ms? claimed_ms?
# finished_ms? finished_fence? code? stage? stages? webhook? metadata? batch? line? custom_id?
# silent? kind? validate_ms; of a delivery: endpoint? event? event_id? replayed_as?
JOB = Key("job", "job:{id}")
# string, JSON of wire.py: what the worker reads. Until result_ttl_s after the end.
REQUEST = Key("request", "job:{id}:request")
# stream of {piece: JSON of token_stream.py}: the text of a job as it comes. For 10 min after the
# last piece.
STREAM = Key("stream", "job:{id}:stream")
# string, JSON of wire.py: the outcome. For result_ttl_s after the end.
RESULT = Key("result", "job:{id}:result")
# string "<job id> <body digest>", for idempotency_ttl_s.
IDEMPOTENCY = Key("idempotency", "idempotency:{tenant}:{route}:{key}")
# set of the names of all queues that ever held a job.
QUEUES = Key("queues", "queues")
# zset job id -> due_ms: what can be claimed now, all tenants of one priority.
READY = Key("ready", "queue:{queue}:{priority}:ready")
# zset job id -> due_ms: the same for one tenant. Gone when empty.
TENANT_READY = Key("tenant_ready", "queue:{queue}:{priority}:tenant:{tenant}")
# zset tenant -> service received (tokens): tenants with something ready. Gone when empty.
TENANTS = Key("tenants", "queue:{queue}:{priority}:tenants")
# zset job id -> deadline_ms of queued jobs that have one.
DEADLINES = Key("deadlines", "queue:{queue}:deadlines")
# zset job id -> not_before_ms of jobs that may not be claimed yet.
LATER = Key("later", "queue:{queue}:later")
# zset job id -> the instant its lease runs out.
LEASES = Key("leases", "queue:{queue}:leases")
# list of at most one token: workers with room block on it.
BELL = Key("bell", "queue:{queue}:bell")
# list of at most one token for realtime and one for standard jobs: workers full of less urgent work
# block on it.
URGENT_BELL = Key("urgent_bell", "queue:{queue}:{priority}:bell")
# zset tenant -> service it left with, where that is above the level it would return at. Gone when
# nothing is ready.
SERVED = Key("served", "queue:{queue}:{priority}:served")
# hash: credit (tokens the overdue share may spend), service:<p> (the service level a returning
# tenant starts at), isolator (the worker that sees to suspects), isolator_until_ms.
SHARE = Key("share", "queue:{queue}:share")
# hash: bytes (what live jobs hold and have room reserved for), cost:<p> (tokens of live jobs),
# pressure, share, share_ms, share_credit (see enqueue.lua), wait_p95_ms (see claim.lua), window_ms,
# window_tokens, speed, pace (see finish.lua).
LOAD = Key("load", "queue:{queue}:load")
# string "<call id> <job id>/<fence> ...": what a worker's last claim was answered, for a repeat.
# For lease_ms.
CLAIMED = Key("claimed", "worker:{worker}:claimed:{queue}")
# hash of counters that only rise: submitted, claimed, lost, stale, and one a terminal state.
TOTALS = Key("totals", "queue:{queue}:totals")
# list of messages to one worker: "cancel <job id>" or "wake". For 60 s after the last message.
INBOX = Key("inbox", "worker:{worker}:inbox")
# pub/sub channel: the id of each prompt job or batch that ends.
ENDED = Key("ended", "ended")
# pub/sub channel: the ids of the jobs that gained text in one step, with blanks between.
STREAMED = Key("streamed", "streamed")
# hash, until batch_record_ttl_ms after the end. tenant status endpoint input_file completion_window
# window metadata? output_ttl_ms created_ms expires_ms <status>_ms? progress (JSON, see batch.py)
# counted_line? (the last whose tokens its tenant's rates have) output_file? error_file?
BATCH = Key("batch", "batch:{id}")
# zset job id -> line: a batch's lines that are queued or running. Gone with its batch.
BATCH_LIVE = Key("batch_live", "batch:{id}:live")
# zset JSON {job_id, line, custom_id, state} -> line: lines that ended and are not yet in a segment.
# Gone with its batch.
BATCH_ENDED = Key("batch_ended", "batch:{id}:ended")
# zset batch id -> created_ms of one tenant. Until batch_record_ttl_ms after its last batch can have
# ended.
BATCHES = Key("batches", "tenant:{tenant}:batches")
# hash, until deleted or swept. tenant filename purpose bytes sha256 status note? created_ms
# expires_ms readers (batches that have yet to end and read it; such a file is kept)
FILE = Key("file", "file:{id}")
# zset file id -> created_ms of one tenant.
FILES = Key("files", "tenant:{tenant}:files")
# zset file id -> the instant its lifetime is over: every file there is.
FILE_EXPIRY = Key("file_expiry", "file_expiry")
# hash, until deleted. tenant name url event_types (JSON list) secret (whsec_...) old_secret?
# old_secret_until_ms? created_ms updated_ms failures? failing_since_ms? paused_until_ms?
# disabled_ms? disabled_reason?
ENDPOINT = Key("endpoint", "endpoint:{id}")
# zset endpoint id -> created_ms of one tenant.
ENDPOINTS = Key("endpoints", "tenant:{tenant}:endpoints")
# zset endpoint id -> disabled_ms of the endpoints of all tenants that deliveries disabled, until
# they are enabled again or deleted.
DISABLED_ENDPOINTS = Key("disabled_endpoints", "disabled_endpoints")
# set of the ids of a tenant's endpoints that are enabled and asked for an event. Gone when empty.
SUBSCRIBERS = Key("subscribers", "tenant:{tenant}:event:{event}:endpoints")
# zset delivery id -> created_ms: the newest deliveries to an endpoint, of which those that ended
# longer than record_ttl_ms ago have no record any more. Gone with the endpoint.
DELIVERIES = Key("deliveries", "endpoint:{id}:deliveries")
# list of JSON {at_ms, result, status?, duration_ms}: a delivery's attempts. For record_ttl_ms after
# the last.
ATTEMPTS = Key("attempts", "delivery:{id}:attempts")
# hash, until deleted: what a tenant may do. created_ms policy (JSON, see tenants.py)
TENANT = Key("tenant", "tenant:{tenant}")
# zset tenant -> created_ms: every tenant that was made.
TENANT_NAMES = Key("tenant_names", "tenants")
# hash, until 30 days after it was revoked. tenant name hint digest (SHA-256 of the whole key, hex)
# created_ms revoked_ms?
API_KEY = Key("api_key", "api_key:{id}")
# zset API key id -> created_ms of one tenant; of those revoked long ago the id alone is left.
API_KEYS = Key("api_keys", "tenant:{tenant}:api_keys")
# zset job id -> arrival_ms of queued and running, finished_ms of ended jobs; no lines of batches.
# What ended longer than record_ttl_s ago is forgotten when the next one ends, or when none does.
JOBS = Key("jobs", "tenant:{tenant}:jobs:{state}")
# zset job id -> finished_ms of the dead jobs of all queues. Forgets them as JOBS does.
DEAD = Key("dead", "dead")
# hash of counters that only rise: submitted, tokens, and one a terminal state, of prompt jobs.
USAGE = Key("usage", "tenant:{tenant}:usage")
# hash: <bucket>:level and <bucket>:at_ms of the buckets requests and tokens, day and day_tokens.
# For two days after the last submit.
BUCKETS = Key("buckets", "tenant:{tenant}:buckets")
# string, JSON of wire.py: the answer of a job, for equal ones of its tenant (see answer_cache.py of
# the workers). For as many seconds as the switch reuse_answers says.
ANSWER = Key("answer", "tenant:{tenant}:answer:{digest}")
# hash of the degradation switches that are on: their name and a whole number (see switches.py), and
# use_model:<name> with the name of the model that is used instead (see model_routes.py).
SWITCHES = Key("switches", "switches")
# string, for 10 s: written by readiness probes to see that the store takes writes.
PROBE = Key("probe", "probe")

LUA_FAMILIES = (
    JOB,
    REQUEST,
    STREAM,
    RESULT,
    IDEMPOTENCY,
    QUEUES,
    READY,
    TENANT_READY,
    TENANTS,
    DEADLINES,
    LATER,
    LEASES,
    BELL,
    URGENT_BELL,
    SERVED,
    SHARE,
    LOAD,
    SWITCHES,
    CLAIMED,
    TOTALS,
    INBOX,
    ENDED,
    STREAMED,
    BATCH,
    BATCH_LIVE,
    BATCH_ENDED,
    BATCHES,
    FILE,
    FILES,
    FILE_EXPIRY,
    ENDPOINT,
    ENDPOINTS,
    DISABLED_ENDPOINTS,
    SUBSCRIBERS,
    DELIVERIES,
    ATTEMPTS,
    TENANT,
    TENANT_NAMES,
    API_KEY,
    API_KEYS,
    JOBS,
    DEAD,
    USAGE,
    BUCKETS,
)


def lua_key_functions(text: str) -> str:
    """Return the Lua functions that spell the keys of a script's text, for its head."""
    used = (family for family in LUA_FAMILIES if f"{family.name}_key(" in text)
    return "".join(family.as_lua() for family in used)


def idempotency_key(tenant: str, idempotency: Idempotency) -> str:
    """Spell an idempotency key without the prefix.

    The client's part is hashed: it can be long and hold anything.
    """
    key = hashlib.sha256(idempotency.key.encode()).hexdigest()
    return IDEMPOTENCY.of("", tenant=tenant, route=idempotency.route, key=key)


def idempotency_fields(tenant: str, idempotency: Idempotency) -> dict[str, str | int | bool]:
    """Return an idempotency key as scripts read it; see answered_already in _places.lua."""
    fields: dict[str, str | int | bool] = {
        "idempotency_key": idempotency_key(tenant, idempotency),
        "digest": idempotency.digest,
        "begins": idempotency.begins,
    }
    if idempotency.ttl_ms is not None:
        fields["idempotency_ttl_ms"] = idempotency.ttl_ms
    return fields
