"""Embeddings whose worker dies come to the same vectors elsewhere, each once."""

from array import array
from base64 import b64decode

from queueing.job import JobKind, JobState
from queueing.wire import EmbedRequest, encode_request
from tests.support.fake_engine import byte_tokenizer, expected_vector
from tests.support.jobs import MODEL, TENANT, a_job, state_of

TOKENIZER = byte_tokenizer()
TEXTS = [f"text {number} " * 40 for number in range(60)]


def test_embeddings_of_a_worker_that_was_killed_are_made_by_the_next(cluster):
    worker = cluster.start_worker(step_ms=20)
    jobs = {
        a_job(request=encode_request(EmbedRequest(MODEL, prompt=text)), kind=JobKind.EMBED): text
        for text in TEXTS
    }
    cluster.queue.enqueue_many(list(jobs))

    def num_completed():
        return sum(state_of(cluster.queue, job.id) is JobState.COMPLETED for job in jobs)

    cluster.wait_until(lambda: 0 < num_completed() < len(jobs))
    worker.kill9()
    cluster.start_worker()
    cluster.wait_until(lambda: num_completed() == len(jobs))

    records = {text: cluster.queue.get(job.id, TENANT) for job, text in jobs.items()}
    vectors = {
        text: array("f", b64decode(record.result.vector)) for text, record in records.items()
    }
    assert vectors == {text: expected_vector(TOKENIZER.encode(text)) for text in TEXTS}
    assert max(record.losses for record in records.values()) == 1
