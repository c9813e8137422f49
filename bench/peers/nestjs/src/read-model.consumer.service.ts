import { ServiceBusClient, ServiceBusError, ServiceBusReceivedMessage, ServiceBusSessionReceiver } from '@azure/service-bus';
import { Inject, Injectable, Logger, OnModuleDestroy, OnModuleInit } from '@nestjs/common';
import { AnyBulkWriteOperation, Collection, Db, MongoServerError } from 'mongodb';

import { READ_MODELS, SERVICE_BUS } from './clients.js';
import { settings } from './settings.js';

interface Total {
  _id: string;
  events: number;
  total: number;
  last: number;
}

const SESSIONS = settings.tuned ? 64 : 1;
/** Tuned: messages that are unsettled at a time in a session. */
const CREDIT = 100;
/** A session without a message for this long is let go. */
const IDLE_MS = 20;
const DUPLICATE_KEY = 11000;

/** Holds sessions and writes each event to the read model, if its version is higher than the last one. */
@Injectable()
export class ReadModelConsumerService implements OnModuleInit, OnModuleDestroy {
  private readonly logger = new Logger(ReadModelConsumerService.name);
  private readonly totals: Collection<Total>;
  private stopped = false;

  constructor(
    @Inject(READ_MODELS) database: Db,
    @Inject(SERVICE_BUS) private readonly serviceBus: ServiceBusClient,
  ) {
    this.totals = database.collection<Total>('totals');
  }

  onModuleInit() {
    for (let slot = 0; slot < SESSIONS; slot++) void this.acceptSessions();
  }

  async onModuleDestroy() {
    this.stopped = true;
    await this.serviceBus.close();
  }

  private async acceptSessions() {
    while (!this.stopped) {
      try {
        const session = await this.serviceBus.acceptNextSession(settings.topic, settings.subscription);
        await (settings.tuned ? this.consumeInBatches(session) : this.consumeOneByOne(session));
        await session.close();
      } catch (error) {
        const expected = error instanceof ServiceBusError && (error.code === 'ServiceTimeout' || error.code === 'SessionCannotBeLocked');
        if (!expected && !this.stopped) this.logger.error(`session failed: ${(error as Error).message}`);
      }
    }
  }

  private async consumeOneByOne(session: ServiceBusSessionReceiver) {
    while (true) {
      const [message] = await session.receiveMessages(1, { maxWaitTimeInMs: IDLE_MS });
      if (!message) return;
      await this.apply([message]);
      await session.completeMessage(message);
    }
  }

  private consumeInBatches(session: ServiceBusSessionReceiver): Promise<void> {
    return new Promise((done, failed) => {
      let waiting: ServiceBusReceivedMessage[] = [];
      let applying = false;
      let idle = setTimeout(done, 10 * IDLE_MS);
      const drain = async () => {
        if (applying) return;
        applying = true;
        clearTimeout(idle);
        try {
          // Deliveries of the same read of the socket belong to one batch.
          await new Promise((resolve) => setImmediate(resolve));
          while (waiting.length > 0) {
            const batch = waiting;
            waiting = [];
            await this.apply(batch);
            await Promise.all(batch.map((message) => session.completeMessage(message)));
          }
          idle = setTimeout(done, IDLE_MS);
        } catch (error) {
          failed(error);
        }
        applying = false;
      };
      session.subscribe(
        {
          processMessage: async (message) => {
            waiting.push(message);
            void drain();
          },
          processError: async ({ error }) => failed(error),
        },
        { autoCompleteMessages: false, maxConcurrentCalls: CREDIT },
      );
    });
  }

  private async apply(messages: ServiceBusReceivedMessage[]) {
    const statements = messages.map((message) => upsert(message));
    for (let next = 0; next < statements.length; ) {
      try {
        await this.totals.bulkWrite(statements.slice(next), { ordered: true });
        return;
      } catch (error) {
        // The version is not higher than the last one: applied before.
        if (!(error instanceof MongoServerError) || error.code !== DUPLICATE_KEY) throw error;
        next += ((error as any).writeErrors?.[0]?.index ?? 0) + 1;
      }
    }
  }
}

function upsert({ body }: ServiceBusReceivedMessage): AnyBulkWriteOperation<Total> {
  const { aggregateId, version, payload } = body;
  return {
    updateOne: {
      filter: { _id: aggregateId, last: { $lt: version } },
      update: { $inc: { events: 1, total: payload.price }, $set: { last: version } },
      upsert: true,
    },
  };
}
