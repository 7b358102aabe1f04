"""The sentences of the documents in Russian. The English ones have the same keys and the same facts."""

from __future__ import annotations

from collections.abc import Mapping

RUSSIAN: Mapping[str, str] = {
    "written": "создан командой 'tidegate jobs docs' из объявления job; вручную не править",
    "yes": "да",
    "no": "нет",
    "span.days": "д",
    "span.hours": "ч",
    "span.minutes": "мин",
    "span.seconds": "с",
    "span.for_ever": "бессрочно",
    # Headings, as the standard has them.
    "heading.purpose": "Назначение",
    "heading.classification": "Классификация",
    "heading.schedule": "Расписание и locking",
    "heading.input": "Входная модель",
    "heading.algorithm": "Алгоритм",
    "heading.transaction": "Граница транзакции",
    "heading.idempotency": "Идемпотентность и retry",
    "heading.observability": "Наблюдаемость",
    "heading.runbooks": "Связанный runbook",
    "heading.tests": "Тесты",
    "heading.references": "Обратные ссылки",
    # Labels of lists and columns of tables.
    "label.service": "Сервис",
    "label.type": "Тип",
    "label.trigger": "Триггер",
    "label.tier": "Уровень критичности",
    "label.freshness_sla": "Freshness SLA",
    "label.schedule": "Расписание",
    "label.missed": "Пропущенные запуски",
    "label.overlap": "Наложение запусков",
    "label.lock": "Распределённая блокировка",
    "label.batch_size": "Размер пакета",
    "label.max_duration": "Максимальная длительность",
    "label.unit": "Единица работы",
    "label.stored": "Что сохраняется",
    "label.external": "Внешние вызовы",
    "label.partial_failure": "Частичный сбой",
    "label.restart": "Перезапуск",
    "label.duplicate": "Повторный элемент",
    "label.repeatable": "Повторяемый сбой",
    "label.poison": "Неисправимый элемент",
    "label.logs": "Логи",
    "label.metrics": "Метрики",
    "label.traces": "Трассировка",
    "label.checkpoint": "Контрольная точка",
    "label.alerts": "Оповещения",
    "column.field": "поле",
    "column.type": "тип",
    "column.required": "обязательное",
    "column.source": "источник",
    "column.description": "описание",
    "column.failure": "вид сбоя",
    "column.look": "с чего начать",
    "column.runbook": "runbook",
    "column.case": "случай",
    "column.expected": "что должно быть",
    "column.tests": "тесты",
    "column.metric": "метрика",
    "column.measures": "что измеряет",
    "column.alert": "оповещение",
    "column.condition": "условие",
    # Purpose and classification.
    "purpose.consumer": "Предметная задача: применяет каждое событие своих топиков один раз, как обработчик очереди.",
    "purpose.projection": "Проекция: поддерживает модель чтения; backfill строит её заново.",
    "purpose.fold": "Проекция: поддерживает модель чтения, собранную из многих событий; backfill строит её заново.",
    "purpose.scheduled": "Операционная или предметная задача по часам: обрабатывает каждую из многих записей.",
    "purpose.maintenance": "Обслуживание: удаляет то, что хранится дольше, чем велит политика хранения.",
    "purpose.provider": "Опрос провайдера: переносит сюда каталог провайдера `{provider}`, страница за страницей.",
    "service": "`{service}`, владелец {owner}",
    "type.cron": "Scheduled, по расписанию (`{kind}`)",
    "type.every": "Recurring, периодический (`{kind}`)",
    "type.manual": "One-off, разовый (`{kind}`)",
    "type.topics": "Queue worker, обработчик очереди (`{kind}`)",
    "trigger.topics": "топик {topics}; вручную — backfill или replay сообщений DLQ",
    "trigger.cron": "cron {cron} в часовом поясе {zone}; ручная команда `tidegate jobs run {job}`",
    "trigger.every": "каждые {span}; ручная команда `tidegate jobs run {job}`",
    "trigger.manual": "только ручная команда `tidegate jobs run {job}`",
    "freshness_sla.topics": "читатели могут отставать на {span}",
    "freshness_sla.clock": "последний успешный запуск каждой области не старше {span}",
    "tier.critical": "критический",
    "tier.standard": "обычный",
    "tier.low": "низкий",
    # Schedule and locking.
    "schedule.topics": "нет: работает, пока работает worker, по мере поступления записей в consumer group {group}",
    "schedule.cron": "cron {cron}, часовой пояс {zone}.",
    "schedule.every": "каждые {span}, считая от 1970 года по UTC.",
    "schedule.manual": "нет: запуск создаётся, когда его запросили.",
    "schedule.jitter": "Запуски начинаются позже на время до {span}, у каждой области своя задержка.",
    "missed.latest": "после простоя один запуск, в котором записано, за сколько пропущенных он отвечает",
    "missed.each": "после простоя по запуску на каждый пропущенный, не более {limit} последних",
    "overlap.skip": "пока прежний запуск этой области не завершён, новый записывается как `skipped_overlap`",
    "overlap.wait": "пока прежний запуск этой области не завершён, следующий ждёт",
    "lock.topics": (
        "ключ {key}; время жизни: до тех пор, пока партицию не возьмёт другой worker, отчего растёт эпоха; владелец: "
        "участник группы {group}, которому назначена партиция. Запись под прежней эпохой ничего не меняет"
    ),
    "lock.clock": (
        "ключ {key}; время жизни {ttl}, продление каждые {renewal}; владелец: процесс, взявший запуск, с "
        "fencing-токеном, который растёт с каждым владельцем. Запись под прежним токеном ничего не меняет"
    ),
    "batch_size.topics": "не более {size} записей одной партиции",
    "batch_size.clock": "не более {size} элементов",
    "max_duration.consumer": (
        "{limit} на вызов обработчика, затем он прерывается; Postgres завершает транзакцию, которая молчит {silence}"
    ),
    "max_duration.topics": "нет: чистые функции и записи в хранилище, у каждой из которых свой предел времени",
    "batch_size.upkeep": "пакетами от нескольких сотен до тысячи, как устроен обход",
    "max_duration.upkeep": "{limit} на запуск; затем прерывание",
    "max_duration.clock": "{limit} на запуск, {handler} на вызов обработчика; затем прерывание",
    # Input model.
    "request.consumer": "Модель запроса: события {models}, из которых получаются {commands}.",
    "request.topics": "Модель запроса: события {models}.",
    "request.clock": "Модель запроса: {query} запрашивает страницу элементов, {command} обрабатывает один из них.",
    "request.upkeep": "Модель запроса: нет; запуск — один обход, обработчики сервиса не вызываются.",
    "request.input": "Параметры запуска: {model}.",
    "source.envelope": "атрибут конверта {names}",
    "source.no_scope": "нет: топики не сообщают области",
    "source.event_id": "конверт, иначе топик, партиция и offset",
    "source.event": "данные {types}",
    "source.scope": "область расписания либо `--tenant` и `--brand` ручного ввода",
    "source.across": "нет: все tenant сразу, см. «Алгоритм»",
    "source.at": "срок по расписанию либо `--at` ручного ввода",
    "source.param": "`--param {name}=…` ручного ввода; у запуска по часам — значение по умолчанию",
    "field.tenant": "граница tenant",
    "field.brand": "бренд внутри tenant",
    "field.event_id": "по нему событие применяется один раз",
    "field.scheduled_at": "срок, ради которого создан запуск; у повторов тот же",
    # Algorithm.
    "step.topics.lock": (
        "Взять блокировку {key}: worker владеет партицией под новой эпохой. Correlation id — из самого события."
    ),
    "step.topics.scope": "Tenant и бренд берутся из каждого события; вызов обработчика получает события одной области.",
    "step.topics.across": "Состояние собирается из событий нескольких tenant, потому что: {reason}",
    "step.topics.load": "Загрузить пакет до {size} записей одной партиции в порядке их offset.",
    "step.consumer.apply": "Применить правило каждого типа событий: {works}.",
    "step.projection.apply": "Вычислить записи каждого события чистой функцией: {works}; отправить их в {sink}.",
    "step.fold.apply": "Изменить состояние ключа события чистой функцией: {works}; отобразить его в {sink}.",
    "step.consumer.store": "Сохранить в транзакции позицию, отметки id событий (claims) и сообщения DLQ.",
    "step.projection.store": (
        "Сохранить позицию, отметки id событий (claims) и сообщения DLQ после того, как хранилище приняло записи."
    ),
    "step.fold.store": (
        "Сохранить в одной транзакции позицию, claims, состояния и сообщения DLQ; изменённые ключи ждут отображения."
    ),
    "step.consumer.facts": (
        "Что публикуют обработчики, пишется в outbox в той же транзакции; relay доставляет это в Kafka в порядке "
        "каждого ключа, хотя бы один раз, с теми же id."
    ),
    "step.projection.facts": "Доменные события не публикуются: результат — {sink}. Сообщения DLQ уходят через outbox.",
    "step.topics.end": "Сообщить Kafka обработанные offset, записать метрики; блокировка держится до отзыва партиции.",
    "step.clock.lock": (
        "Взять наступивший запуск вместе с блокировкой {key} под fencing-токеном; у запуска есть correlation id, "
        "который сохраняется при повторах."
    ),
    "step.clock.scope": "Определить tenant и бренд.",
    "scopes.listed": "По запуску на каждую область из {scopes}; ни один запуск не видит чужих данных.",
    "scopes.asked": "По запуску на каждую область, которую назовёт {source} в срок; ни один не видит чужих данных.",
    "scopes.across": "Один запуск проходит по всем tenant, потому что: {reason}",
    "step.clock.load": (
        "Загрузить пакет: {query} ({handlers}) даёт до {size} элементов после контрольной точки в порядке {key}."
    ),
    "step.provider.load": (
        "Загрузить страницу: {query} ({handlers}) вызывает провайдера один раз, вне транзакции: до {size} элементов "
        "в его порядке после страницы, на которую указывает контрольная точка."
    ),
    "step.clock.apply": "Применить правило к каждой записи: {command} ({handlers}).",
    "rule.retention": "Удаляется то, что старше {span}.",
    "rule.by_rule": "Удаляется то, на что указывает правило в самих данных: {words}.",
    "rule.audited": "Каждый пакет удалений записывается в аудит.",
    "rule.not_audited": "Удаляемое не относится к чьим-либо данным: аудита нет.",
    "rule.provider": (
        "Провайдер {provider} доступен для {access}; не более {calls} вызовов за {per} на все процессы; после "
        "{failures} сбоев подряд его не трогают {rest}. Каждый запуск читает с момента за {reach} до начала "
        "последнего успешного."
    ),
    "step.clock.store": "Сохранить контрольную точку и результат каждого элемента под токеном, в той же транзакции.",
    "step.clock.facts": (
        "Что публикуют обработчики, пишется в outbox в той же транзакции; relay доставляет это в Kafka в порядке "
        "каждого ключа, хотя бы один раз, с теми же id."
    ),
    "step.upkeep.round": "Сделать один обход: найти и удалить пакет за пакетом то, что отслужило; элементов нет.",
    "step.upkeep.store": "После каждого пакета записать под токеном, сколько удалено; контрольной точки нет.",
    "step.clock.end": "Снять блокировку, записать итог запуска, метрики и лог.",
    # Transaction boundary.
    "unit.consumer": "пакет одной партиции; после сбоя каждое событие под своей точкой сохранения",
    "unit.projection": "пакет одной партиции: записать в хранилище, затем закрепить одним запросом",
    "unit.stable": "пакет одной партиции: начать диапазон, записать его под постоянным именем, закрепить",
    "unit.fold": "пакет одной партиции; отображение — отдельная единица, ключ за ключом",
    "unit.upkeep": "на пакет удалений; не все они в Postgres",
    "unit.item": "на каждый элемент",
    "unit.batch": "на пакет до {size} элементов; после сбоя каждый элемент под своей точкой сохранения",
    "stored.consumer": (
        "сущности обработчиков, `tidegate.position`, `tidegate.inbox`, `tidegate.dead_letter`, `tidegate.parked`, "
        "`tidegate.outbox`. Ручные действия записываются в `tidegate.audit`"
    ),
    "stored.projection": (
        "документы в {sink}; затем `tidegate.position`, `tidegate.inbox`, `tidegate.dead_letter`, `tidegate.outbox`. "
        "Ручные действия записываются в `tidegate.audit`"
    ),
    "stored.stable": (
        "взятый диапазон в `tidegate.position` и `tidegate.inbox`; строки в {sink}; затем позиция. Ручные действия "
        "записываются в `tidegate.audit`"
    ),
    "stored.fold": (
        "`tidegate.fold_state`, `tidegate.dirty`, `tidegate.position`, `tidegate.inbox`, `tidegate.dead_letter`, "
        "`tidegate.parked`; позже документы в {sink}. Ручные действия записываются в `tidegate.audit`"
    ),
    "stored.clock": (
        "сущности обработчика, `tidegate.job_item`, `tidegate.job_checkpoint`, `tidegate.job_run`, "
        "`tidegate.outbox`. Ручные действия записываются в `tidegate.audit`.{more}"
    ),
    "stored.upkeep": (
        "запуск и его счётчики в `tidegate.job_run`, кроме самих удалений. Ручные действия записываются в "
        "`tidegate.audit`"
    ),
    "stored.cursor": " Успешный запуск двигает `tidegate.provider_cursor`",
    "stored.audit": " Каждый пакет удалений имеет строку в `tidegate.audit`",
    "external.consumer": "{calls}; опубликованное уходит после commit и повторяется, пока Kafka его не примет",
    "external.projection": "{sink} до commit, повтор целиком до приёма; благодаря версии повторы безвредны",
    "external.stable": "{sink} до commit, повтор под тем же именем, которое хранилище принимает один раз",
    "external.fold": "{sink} после commit, повтор до приёма; благодаря номеру изменения повторы безвредны",
    "external.clock": "{calls}; опубликованное уходит после commit и повторяется, пока Kafka его не примет",
    "external.provider": (
        "провайдер читается до commit, в пределах rate limit и circuit breaker, и ничего у него не меняется; "
        "опубликованное уходит после commit и повторяется, пока Kafka его не примет"
    ),
    "calls.none": "не объявлены",
    "calls.before": "{handlers} до транзакции, с retry",
    "calls.inside": ("{handlers} внутри транзакции: откат их не отменит, а повтор вызовет снова"),
    "partial.park": "продолжить: сообщение DLQ в {topic}; поздние события его ключа ждут, остальные идут дальше",
    "partial.skip": "продолжить: сообщение DLQ в {topic}; поздние события его ключа проходят",
    "partial.projection": "продолжить: сообщение DLQ в {topic}; более новая версия документа проходит",
    "partial_failure.upkeep": "остановить: запуск завершается как `failed`; удалённое остаётся удалённым",
    "partial.continue": "продолжить: элемент засчитан как сбойный, его повторит следующий запуск, который его встретит",
    "partial.stop": "остановить: запуск завершается перед элементом; сделанное остаётся",
    "partial.quarantine": ("карантин: элемент становится сообщением DLQ в {topic}, запуск идёт дальше"),
    # Idempotency and retry.
    "restart.topics": "с позиции в Postgres; прерванный пакет откачен целиком",
    "restart.run": "повтор идёт дальше контрольной точки своего запуска; следующий срок начинает сначала",
    "duplicate.upkeep": "нет: удалённое не удаляется дважды",
    "poison.upkeep": "нет: что мешает обходу, завершает его запуск сбоем, и там названо",
    "external.upkeep": "к Postgres, для tombstone также к хранилищу job и к Kafka, вне транзакций",
    "restart.upkeep": "повтор начинает обход заново, и удалять остаётся меньше",
    "restart.job": "каждый запуск идёт дальше контрольной точки предыдущего",
    "restart.provider.run": "повтор идёт дальше со страницы, где прервался запуск; следующий срок спрашивает заново",
    "restart.provider.job": "каждый запуск идёт дальше со страницы, где остановился прерванный, с его же запросом",
    "duplicate.item_version": "отсеивается по {key} и {version} элемента в области, бессрочно",
    "duplicate.claim": "отсеивается по id события, отмеченному в `tidegate.inbox`; {kept}",
    "horizon": "помнится {span}",
    "horizon.default": "помнится не меньше, чем Kafka хранит записи",
    "duplicate.version": "отсеивается по версии документа: равная или более старая запись ничего не меняет",
    "duplicate.occasion": "отсеивается по {key} элемента, один раз на срок и область",
    "duplicate.own": "отсеивается по {key} в области, бессрочно",
    "repeatable.topics": (
        "политика `{name}`: попыток {attempts} после временного сбоя, {unexpected} после неожиданного, {crashes} там, "
        "где гибнет процесс; паузы от {first} до {longest} со случайным разбросом, вне транзакции. Недоступность "
        "нужного сервиса попыток не расходует"
    ),
    "repeatable.clock": (
        "политика `{name}`: попыток на элемент {attempts} после временного сбоя, {unexpected} после неожиданного, "
        "паузы от {first} до {longest} со случайным разбросом; попыток запуска {runs}, пауза {delay}. Недоступность "
        "нужного сервиса попыток не расходует"
    ),
    "repeatable.upkeep": "попыток запуска {runs}, пауза {delay}; у элементов попыток нет",
    "poison.park": (
        "сообщение DLQ в {topic}, его ключ ждёт; replay командой `tidegate dlq replay --job {job}`, с правом и аудитом"
    ),
    "poison.skip": "сообщение DLQ в {topic}; replay командой `tidegate dlq replay --job {job}`, с правом и аудитом",
    "poison.projection": (
        "сообщение DLQ в {topic}; replay командой `tidegate dlq replay --job {job}`, с правом и аудитом"
    ),
    "poison.continue": (
        "сбойный элемент, виден в `tidegate jobs items {job}`; бизнес-сбой в этом запуске не повторяется"
    ),
    "poison.stop": (
        "запуск завершается как `failed`; бизнес-сбой не повторяется: `tidegate jobs run {job}` после исправления"
    ),
    "poison.quarantine": (
        "карантин: сообщение DLQ в {topic}; {again}; ручной разбор — `tidegate jobs items {job}`, replay — "
        "`tidegate jobs replay {job}`, с правом и аудитом"
    ),
    "again.occasion": "ни один запуск этого срока его не повторит, запуск следующего — если встретит",
    "again.own": "ни один запуск его не повторит, пока {key} даёт ему тот же ключ",
    "again.item_version": "ни один запуск не повторит эту его версию",
    # Observability.
    "logs.topics": (
        "{names}; с job, топиком и партицией; у пакета также запуск, эпоха и offset, у сообщения DLQ — correlation id "
        "и tenant"
    ),
    "logs.clock": (
        "{names}; в логах запуска — job, запуск, correlation id, tenant и бренд, в логах расписания и провайдера — job "
        "или провайдер"
    ),
    "traces.topics": (
        "span на каждый пакет, связан с трассами отправителей, с `tidegate.job`, `tidegate.run` (0 — обычная работа, "
        "иначе номер backfill), `tidegate.epoch` и первыми 32 значениями `tidegate.tenant` и `tidegate.correlation_id` "
        "из его событий"
    ),
    "traces.clock": (
        "span на каждый запуск с `tidegate.correlation_id`, `tidegate.tenant`, `tidegate.brand`, `tidegate.run`, "
        "`tidegate.job`, `tidegate.outcome`"
    ),
    "checkpoint.position": (
        "позиция в каждой партиции: `tidegate jobs show {job} --json`, в `batch.settled` как `next_offset`, "
        "`tidegate_position_offset`"
    ),
    "checkpoint.key": (
        "ключ последнего элемента по областям: `tidegate jobs show {job} --json`, в логе каждого пакета и в конце "
        "запуска; это текст, поэтому метрика говорит лишь, когда она сдвинулась"
    ),
    "checkpoint.question": (
        "запрос и страница его ответа, а также курсор по областям: `tidegate jobs show {job} --json`, в логе каждой "
        "страницы и в конце запуска; курсор — время, поэтому есть и метрика"
    ),
    "checkpoint.none": "нет: каждый запуск начинает обход сначала",
    "measure.duration": "длительность",
    "measure.processed": "обработано",
    "measure.skipped": "пропущено",
    "measure.failed": "ошибки",
    "measure.items": "обработано, пропущено и сбои (`outcome`)",
    "measure.runs": "запуски по итогу (`outcome`), среди них failed и stalled",
    "measure.backlog": "очередь",
    "measure.lag": "отставание",
    "measure.freshness": "свежесть для читателей",
    "measure.checkpoint": "контрольная точка",
    "measure.checkpoint_moved": "когда сдвинулась контрольная точка",
    "measure.cursor": "курсор самой отстающей области",
    "measure.calls": "вызовы провайдера по итогу (`outcome`), среди них throttled и failed",
    "measure.held_back": "пакеты, откаченные для повтора",
    "measure.parked": "события, ждущие за сообщением DLQ",
    "measure.age": "возраст последней обработанной записи",
    "measure.outage": "разомкнутые circuit breaker по тому, что не отвечает",
    "measure.outbox": "записи всех job, ждущие Kafka",
    "measure.events_full": "стоит ли он, потому что слишком многое из публикуемого ждёт Kafka",
    "measure.outbox_age": "отставание публикуемого",
    "measure.success": "когда запуск последний раз завершился успешно, у самой отстающей области",
    "measure.sla": "SLA, как объявлено",
    "measure.contention": "конкуренция за блокировку",
    "alert.stuck": "job застрял",
    "alert.backlog": "растёт очередь",
    "alert.freshness": "читатели отстают от SLA {sla}",
    "alert.errors": "ошибки",
    "alert.outage": "не отвечает то, что ему нужно",
    "alert.success": "ни один запуск не завершился успешно за SLA {sla}",
    # Runbooks.
    "failure.behind": "отстаёт, или у партиций нет владельца",
    "failure.letters": "сообщения DLQ",
    "failure.blocked": "партиция ждёт человека",
    "failure.outage": "не отвечает то, что ему нужно",
    "failure.run_failed": "запуск завершился сбоем",
    "failure.run_stalled": "запуск завис: его процесса больше нет",
    "failure.overlap": "запуски пропускаются: запуск длится дольше периода",
    "failure.items": "элементы со сбоем или в карантине",
    "failure.run_due": "срок запусков наступил, и никто над ними не работает",
    "runbook.missing": "`{path}` (нет в этом репозитории)",
    # Tests.
    "case.empty_batch": "пустой пакет",
    "case.partial_failure": "частичный сбой",
    "case.single_runner": "двойной запуск: конкуренция",
    "case.repeat_is_idempotent": "двойной запуск: повторный триггер",
    "case.cancellation": "отмена",
    "case.retry_duplicates_nothing": "retry",
    "case.replay_needs_permission": "ручной replay",
    "expected.empty_batch": "успешное завершение без действий",
    "expected.partial_failure": "контрольная точка стоит за сделанным; повтор продолжает с неё",
    "expected.single_runner": "один владелец блокировки; двух запусков рядом нет",
    "expected.repeat_is_idempotent": "итог такой же, как от одного",
    "expected.cancellation": "мягкая остановка после начатого",
    "expected.retry_duplicates_nothing": "ни деньги, ни события не удваиваются",
    "expected.replay_needs_permission": "без права отказ; и то и другое в аудите",
    "tests.none": "ни один тест не заявляет, что проверяет это",
    "references.none": "Ни один другой документ не называет этот job.",
}
